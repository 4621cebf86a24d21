//! Tables of the suite's page: the results of each task, their differences to all-reduce, and the costs.

use super::{Column, LEARNED, RANKS, REFERENCE, ResultsPage, SKEWED, figure, shown};
use crate::link::NetworkLink;
use crate::suite::{Estimate, PARTITIONS, ResultMeasure};
use crate::task::Quadratics;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Bandwidths of links, in Mbit/s.
const MEGABITS: [f64; 3] = [100.0, 1e3, 1e4];

/// Tasks with the measure that judges them, and a title.
const TASKS: [(&str, ResultMeasure, &str); 4] = [
    ("digits", ResultMeasure::Errors, "Digits: errors on held-out images, in percent"),
    ("text", ResultMeasure::Loss, "Text: loss on held-out windows"),
    (
        "quadratics",
        ResultMeasure::OwnLoss,
        "Quadratics without noise: loss of the replicas above the optimum's",
    ),
    ("noisy-quadratics", ResultMeasure::OwnLoss, "Quadratics with noise: the same"),
];

impl ResultsPage<'_> {
    /// Writes all tables.
    pub(super) fn tables(&self) -> String {
        let matrices: Vec<String> =
            TASKS.iter().map(|(task, measure, title)| self.matrix(task, *measure, title)).collect();
        self.differences() + &self.costs() + &matrices.concat()
    }

    /// Returns the partitions and numbers of ranks with which a task was run.
    fn columns(&self, task: &'static str) -> Vec<Column> {
        let records = || self.0.records().iter().filter(|record| record.place.task == task);
        let ranks: BTreeSet<usize> = records().map(|record| record.place.ranks).collect();
        let columns = PARTITIONS.iter().flat_map(|partition| {
            ranks.iter().map(move |ranks| Column::new(task, partition.to_string(), *ranks))
        });
        columns.filter(|column| records().any(|record| record.place.partition == column.partition)).collect()
    }

    /// Writes a table of a measure over partitions and numbers of ranks.
    fn matrix(&self, task: &'static str, measure: ResultMeasure, title: &str) -> String {
        let columns = self.columns(task);
        if columns.is_empty() {
            return String::new();
        }
        let head: Vec<String> =
            columns.iter().map(|column| format!("{}, {}", column.partition, column.ranks)).collect();
        let mut text = format!(
            "### {title}\n\n± is half of the 95 % confidence interval of the mean over the seeds, by Student's t; a dash \
            means that a run diverged. {}\n\n\
             | algorithm | | {} |\n|---|---|{}\n",
            about(task),
            head.join(" | "),
            "---|".repeat(columns.len())
        );
        for (trigram, algorithm) in self.algorithms() {
            let cell = |column: &Column| {
                let found = self.estimate(&algorithm, column, measure);
                found.map_or_else(String::new, |estimate| shown(estimate, scale(measure)))
            };
            let cells: Vec<String> = columns.iter().map(cell).collect();
            let _ = writeln!(text, "| `{algorithm}` | {trigram} | {} |", cells.join(" | "));
        }
        text + "\n"
    }

    /// Writes the table of differences to all-reduce, seed by seed.
    fn differences(&self) -> String {
        let tasks = [("digits", ResultMeasure::Errors), ("text", ResultMeasure::Loss)];
        let groups: Vec<(Vec<Column>, ResultMeasure)> = tasks
            .iter()
            .flat_map(|(task, measure)| {
                PARTITIONS.iter().map(|partition| {
                    let name = partition.to_string();
                    let own = self.columns(task).into_iter().filter(|column| column.partition == name);
                    (own.collect(), *measure)
                })
            })
            .filter(|(columns, _): &(Vec<Column>, ResultMeasure)| !columns.is_empty())
            .collect();
        let head: Vec<String> = groups
            .iter()
            .map(|(columns, _)| format!("{}, {}", columns[0].task, columns[0].partition))
            .collect();
        let mut text = format!(
            "### Difference to `{REFERENCE}`\n\n\
             Errors on the digits in percentage points, and loss on the text: less is better. Each run is compared to that of \
             all-reduce with the same seed, on the same data in the same order. The differences of a seed are averaged over \
             4, 8 and 25 ranks, as they have draws in common; ± is half of the 95 % confidence interval of the mean over the seeds, by \
             Student's t, and a dash means that a run diverged. A bold difference exceeds this interval; without any \
             effect, about one difference in 20 is bold by chance.\n\n| algorithm | | {} |\n|---|---|{}\n",
            head.join(" | "),
            "---|".repeat(groups.len())
        );
        for (trigram, algorithm) in self.algorithms().into_iter().filter(|(_, name)| name != REFERENCE) {
            let cell = |(columns, measure): &(Vec<Column>, ResultMeasure)| {
                let found = self.difference(&algorithm, columns, *measure);
                found.map_or_else(String::new, |found| signed(found, scale(*measure)))
            };
            let cells: Vec<String> = groups.iter().map(cell).collect();
            let _ = writeln!(text, "| `{algorithm}` | {trigram} | {} |", cells.join(" | "));
        }
        text + "\n"
    }

    /// Estimates the difference of an algorithm's measure to all-reduce's with the same seed.
    fn difference(&self, algorithm: &str, columns: &[Column], measure: ResultMeasure) -> Option<Estimate> {
        let pair = |column: &Column| [column.place(algorithm), column.place(REFERENCE)];
        self.0.difference(&columns.iter().map(pair).collect::<Vec<_>>(), measure)
    }

    /// Writes the table of the costs of an accuracy.
    fn costs(&self) -> String {
        let percent = 100.0 * LEARNED;
        let mut text = format!(
            "### Digits, {RANKS} ranks: what an accuracy of {percent} % costs\n\n\
             Mean bytes and seconds of a rank, with equal data and, after the slash, with Dirichlet(0.1) data; a dash means \
             that a run does not reach the accuracy in 300 steps. The consensus distance is measured at the end.\n\n\
             | algorithm | | KiB a step | KiB | s, 100 Mbit/s | s, 1 Gbit/s | s, 10 Gbit/s | consensus distance |\n\
             |---|---|---|---|---|---|---|---|\n"
        );
        let steps = self.0.records().iter().find(|record| record.place.task == "digits");
        let steps = steps.map_or(1.0, |record| record.last().step as f64);
        for (trigram, algorithm) in self.algorithms() {
            let both = |measure: ResultMeasure, scale: f64| {
                let of = |partition: &str| {
                    let found = self.estimate(&algorithm, &Column::new("digits", partition, RANKS), measure);
                    found.map_or_else(String::new, |estimate| figure(estimate.mean * scale))
                };
                format!("{} / {}", of("equal"), of(SKEWED))
            };
            let seconds = MEGABITS.map(|megabits| {
                both(ResultMeasure::SecondsTo(LEARNED, NetworkLink::of_megabits(megabits)), 1.0)
            });
            let _ = writeln!(
                text,
                "| `{algorithm}` | {trigram} | {} | {} | {} | {} |",
                both(ResultMeasure::Bytes, 1.0 / 1024.0 / steps),
                both(ResultMeasure::BytesTo(LEARNED), 1.0 / 1024.0),
                seconds.join(" | "),
                both(ResultMeasure::Consensus, 1.0)
            );
        }
        text + "\n![Errors against bytes sent](pictures/which-algorithm-bytes.svg)\n\n\
             Points have the numbers and colors of the key; a number without room is left out.\n\n![Consensus distance by \
             step](pictures/which-algorithm-consensus.svg)\n\n"
    }
}

/// Returns the factor with which a measure is shown.
fn scale(measure: ResultMeasure) -> f64 {
    if measure == ResultMeasure::Errors { 100.0 } else { 1.0 }
}

/// Returns a sentence about the numbers of a task.
fn about(task: &str) -> String {
    let least = Quadratics::new(0).map(|task| task.least()).unwrap_or_default();
    match task {
        "quadratics" => format!(
            "The loss at the optimum is {}, so that {} more is 1 % above the final loss of all-reduce.",
            figure(least),
            figure(least / 100.0)
        ),
        "text" => "A run that diverged to equal probabilities of all characters has no dash, but the loss ln 56 = 4.03: a \
        mean with an interval above 0.5 contains such runs."
            .to_owned(),
        _ => String::new(),
    }
}

/// Returns a difference with its sign, bold if it is beyond the interval.
fn signed(difference: Estimate, scale: f64) -> String {
    if !difference.mean.is_finite() {
        return figure(difference.mean);
    }
    // A remainder of rounding is no difference.
    let mean = if difference.mean.abs() < 1e-9 { 0.0 } else { difference.mean.abs() };
    let sign = if mean > 0.0 && difference.mean < 0.0 { "−" } else { "+" };
    let half = if difference.half < 1e-9 { 0.0 } else { difference.half };
    let size = Estimate { mean, half, ..difference };
    match mean > half {
        true => format!("**{sign}{}**", shown(size, scale)),
        false => format!("{sign}{}", shown(size, scale)),
    }
}
