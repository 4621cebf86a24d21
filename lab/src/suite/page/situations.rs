//! The summary of the suite's page: for each situation, the algorithms that are not beaten there by the suite's
//! numbers.

use super::{Column, LEARNED, RANKS, REFERENCE, ResultsPage, SKEWED, TRIGRAMS, figure};
use crate::link::NetworkLink;
use crate::suite::{Estimate, ResultMeasure};
use std::fmt::Write;

/// Numbers of ranks over which a situation without a network is judged.
const ALL: &[usize] = &[4, 8, 25];
/// Largest number of algorithms named after the first.
const NAMED: usize = 6;

/// Question that a reader may have.
struct Situation {
    words: &'static str,
    task: &'static str,
    partition: &'static str,
    ranks: &'static [usize],
    measure: ResultMeasure,
    /// Trigrams of the algorithms that are possible there.
    trigrams: &'static [&'static str],
}

/// Algorithm in a situation.
struct Scored {
    name: String,
    /// Logarithm of the measure of each run, with its seed, by number of ranks.
    logarithms: Vec<Vec<(u64, f64)>>,
    /// Mean of the logarithms; infinite if a run never gets there.
    mean: f64,
}

/// Creates a situation in which all algorithms are possible.
const fn on(
    words: &'static str,
    task: &'static str,
    partition: &'static str,
    measure: ResultMeasure,
) -> Situation {
    Situation { words, task, partition, ranks: ALL, measure, trigrams: &TRIGRAMS }
}

/// Creates a situation on the digits with as many ranks as in the table of costs.
const fn digits(words: &'static str, partition: &'static str, measure: ResultMeasure) -> Situation {
    Situation { ranks: &[RANKS], ..on(words, "digits", partition, measure) }
}

/// Returns all situations of the summary.
fn all() -> Vec<Situation> {
    let over = |megabits: f64| ResultMeasure::SecondsTo(LEARNED, NetworkLink::of_megabits(megabits));
    let bytes = ResultMeasure::BytesTo(LEARNED);
    let gossip: &[&str] = &["☱", "☵"];
    let asynchronous: &[&str] = &["☲", "☶", "☳", "☷"];
    vec![
        on("equal data, digits", "digits", "equal", ResultMeasure::Errors),
        on("equal data, text", "text", "equal", ResultMeasure::Loss),
        on("skewed data, digits", "digits", SKEWED, ResultMeasure::Errors),
        on("skewed data, text", "text", SKEWED, ResultMeasure::Loss),
        on("skewed data, no noise: the optimum on every rank", "quadratics", SKEWED, ResultMeasure::OwnLoss),
        Situation {
            trigrams: gossip,
            ..on("no all-reduce (☱ ☵), equal data", "digits", "equal", ResultMeasure::OwnLoss)
        },
        Situation {
            trigrams: gossip,
            ..on("no all-reduce (☱ ☵), skewed data", "digits", SKEWED, ResultMeasure::OwnLoss)
        },
        Situation {
            trigrams: asynchronous,
            ..on("no waiting (☲ ☶ ☳ ☷), equal data", "digits", "equal", ResultMeasure::Errors)
        },
        Situation {
            trigrams: asynchronous,
            ..on("no waiting (☲ ☶ ☳ ☷), skewed data", "digits", SKEWED, ResultMeasure::Errors)
        },
        digits("fewest bytes, equal data, 25 ranks", "equal", bytes),
        digits("fewest bytes, skewed data, 25 ranks", SKEWED, bytes),
        digits("100 Mbit/s, equal data, 25 ranks", "equal", over(100.0)),
        digits("100 Mbit/s, skewed data, 25 ranks", SKEWED, over(100.0)),
        digits("10 Gbit/s, equal data, 25 ranks", "equal", over(1e4)),
        digits("10 Gbit/s, skewed data, 25 ranks", SKEWED, over(1e4)),
    ]
}

impl ResultsPage<'_> {
    /// Writes the table of situations.
    pub(super) fn situations(&self) -> String {
        let mut text = "### Which algorithm in which situation\n\n\
             *First* has the smallest geometric mean. The next column has the algorithms that the runs do not distinguish \
             from it: with the same seeds on the same data, averaged over the numbers of ranks, the 95 % interval of the \
             mean ratio to the first contains 1. The same runs choose the first and judge it, so its figure is biased \
             towards good values, and an equally good algorithm may be distinguished from it by chance.\n\n\
             | situation | judged by | first | not distinguished from it | `gradient-allreduce` |\n|---|---|---|---|---|\n"
            .to_owned();
        for situation in all() {
            text += &self.situation(&situation).unwrap_or_default();
        }
        text + "\n"
    }

    /// Writes the row of a situation; `None` if nothing was run there.
    fn situation(&self, situation: &Situation) -> Option<String> {
        let Situation { words, measure, trigrams, .. } = situation;
        let algorithms = self.algorithms().into_iter();
        let allowed: Vec<String> = algorithms
            .filter(|(trigram, _)| trigrams.contains(&trigram.as_str()))
            .map(|(_, name)| name)
            .collect();
        let columns = self.compared(situation, &allowed);
        let mut scored: Vec<Scored> =
            allowed.into_iter().filter_map(|name| self.scored(&columns, *measure, name)).collect();
        scored.sort_by(|one, other| one.mean.total_cmp(&other.mean));
        let first = scored.first().filter(|first| first.mean.is_finite())?;
        let beside = scored[1..].iter().filter(|other| !told_apart(first, other));
        let mut names: Vec<String> = beside.map(|other| named(other, *measure)).collect();
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        let reference = self.scored(&columns, *measure, REFERENCE.to_owned());
        let reference = reference.map_or_else(String::new, |scored| shown(scored.mean, *measure));
        let mut row = String::new();
        let _ = writeln!(
            row,
            "| {words} | {} | {} | {} | {reference} |",
            measure.to_string().split(',').next().unwrap_or_default(),
            named(first, *measure),
            names.join(", ")
        );
        Some(row)
    }

    /// Returns the columns of a situation in which every algorithm was run.
    fn compared(&self, situation: &Situation, algorithms: &[String]) -> Vec<Column> {
        let Situation { task, partition, ranks, measure, .. } = situation;
        let columns = ranks.iter().map(|ranks| Column::new(task, *partition, *ranks));
        let run =
            |column: &Column| algorithms.iter().all(|name| !self.runs(name, column, *measure).is_empty());
        columns.filter(run).collect()
    }

    /// Returns the runs of an algorithm in some columns; `None` without any.
    fn scored(&self, columns: &[Column], measure: ResultMeasure, name: String) -> Option<Scored> {
        let logarithm = |(seed, value): (u64, f64)| (seed, value.max(floor(measure)).ln());
        let of = |column: &Column| self.runs(&name, column, measure).into_iter().map(logarithm).collect();
        let logarithms: Vec<Vec<(u64, f64)>> = columns.iter().map(of).collect();
        let mean = Estimate::by_seed(&logarithms)?.mean;
        let mean = if mean.is_nan() { f64::INFINITY } else { mean };
        Some(Scored { name, logarithms, mean })
    }
}

/// Returns true if an algorithm is worse than the first beyond the scatter of their runs with the same seeds.
fn told_apart(first: &Scored, other: &Scored) -> bool {
    let pairs = first.logarithms.iter().zip(&other.logarithms);
    let differences: Vec<Vec<(u64, f64)>> = pairs
        .map(|(first, other)| {
            let of_seed = |seed: u64| first.iter().find(|run| run.0 == seed).map(|run| run.1);
            other.iter().filter_map(|(seed, value)| Some((*seed, value - of_seed(*seed)?))).collect()
        })
        .collect();
    let found = Estimate::by_seed(&differences);
    found.is_none_or(|found| !found.mean.is_finite() || found.mean - found.half > 0.0)
}

/// Returns the largest difference without meaning: half an image of 360, or a loss below the resolution of f32.
fn floor(measure: ResultMeasure) -> f64 {
    match measure {
        ResultMeasure::Errors => 0.5 / 360.0,
        _ => 1e-6,
    }
}

fn named(scored: &Scored, measure: ResultMeasure) -> String {
    format!("`{}` {}", scored.name, shown(scored.mean, measure))
}

/// Returns the measure whose logarithm is given, with its unit.
fn shown(logarithm: f64, measure: ResultMeasure) -> String {
    let value = logarithm.exp();
    match measure {
        _ if !value.is_finite() => "never".to_owned(),
        ResultMeasure::Errors => format!("{} %", figure(100.0 * value)),
        ResultMeasure::BytesTo(_) => format!("{} KiB", figure(value / 1024.0)),
        ResultMeasure::SecondsTo(..) => format!("{} s", figure(value)),
        _ if value <= 1.001e-6 => "< 1e-6".to_owned(),
        _ => figure(value),
    }
}
