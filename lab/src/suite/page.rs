//! The page that the suite writes, docs/which-algorithm.md: tables between two marks, and pictures beside it.

use super::picture::{Drawn, Picture};
use super::{Estimate, Measure, PARTITIONS, Place, Record, Results, orderings};
use crate::link::Link;
use hexagram::physical::input;
use hexagram::{Error, Result};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

const BEGIN: &str = "<!-- suite: begin -->";
const END: &str = "<!-- suite: end -->";
/// The most bytes of the page.
const LONGEST: u64 = 16 << 20;
/// Accuracy on the digits up to which bytes and seconds are counted.
const LEARNED: f64 = 0.9;
/// Number of ranks of the second table and the pictures.
const RANKS: usize = 8;
/// Bandwidths of links, in Mbit/s.
const MEGABITS: [f64; 3] = [100.0, 1e3, 1e4];

/// Creates the page without tables in a folder, where there is none.
///
/// # Errors
/// [`Error::System`] if it cannot be written.
pub fn create_page(folder: &Path) -> Result<()> {
    let page = folder.join("which-algorithm.md");
    if page.exists() {
        return Ok(());
    }
    let text = format!("# Which algorithm?\n\n{BEGIN}\n{END}\n");
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&page, text)).map_err(|cause| {
        Error::system(format!("write {}", page.display()), cause, "give a folder where you may write")
    })
}

/// Writes tables and pictures of results into a folder with which-algorithm.md, whose text around them stays.
///
/// # Errors
/// [`Error::System`] or [`Error::Usage`] if the page cannot be read or written, or has no marks.
pub fn write_pages(results: &Results, folder: &Path) -> Result<()> {
    let page = folder.join("which-algorithm.md");
    let remedy = "give the folder with which-algorithm.md";
    let text = input::read_text(&page, LONGEST)
        .map_err(|cause| Error::system(format!("read {}", page.display()), cause, remedy))?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = parts else {
        return Err(Error::usage(format!("{} has no lines `{BEGIN}` and `{END}`", page.display()), remedy));
    };
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text)
            .map_err(|cause| Error::system(format!("write {}", path.display()), cause, "see that you may"))
    };
    write("which-algorithm.md", &format!("{before}{BEGIN}\n{}{END}{after}", Page(results).tables()))?;
    write("which-algorithm-consensus.svg", &Page(results).consensus())?;
    write("which-algorithm-bytes.svg", &Page(results).bytes())
}

struct Page<'a>(&'a Results);

impl Page<'_> {
    /// Returns the algorithms, those of one trigram beside each other.
    fn algorithms(&self) -> Vec<(String, String)> {
        let of = |record: &Record| (record.trigram.clone(), record.place.algorithm.clone());
        let named: BTreeSet<(String, String)> = self.0.records().iter().map(of).collect();
        let mut named: Vec<(String, String)> = named.into_iter().collect();
        named.sort_by_key(|(trigram, name)| {
            ("☰☴☱☵☲☶☳☷".find(trigram.as_str()), name != "gradient-allreduce", name.clone())
        });
        named
    }

    fn estimate(
        &self,
        algorithm: &str,
        task: &str,
        partition: &str,
        ranks: usize,
        measure: Measure,
    ) -> Option<Estimate> {
        let place = Place {
            algorithm: algorithm.to_owned(),
            task: task.to_owned(),
            partition: partition.to_owned(),
            ranks,
        };
        self.0.estimate(&place, measure)
    }

    fn tables(&self) -> String {
        let mut text = self.summary();
        for (task, measure, title) in [
            ("digits", Measure::Errors, "Digits: errors on held-out images, in percent"),
            ("text", Measure::Loss, "Text: loss on held-out windows"),
            (
                "quadratics",
                Measure::OwnLoss,
                "Quadratics without noise: loss of the replicas above the optimum's",
            ),
            ("noisy-quadratics", Measure::OwnLoss, "Quadratics with noise: the same"),
        ] {
            text += &self.matrix(task, measure, title);
        }
        text + &self.costs() + &orderings::table(self.0)
    }

    /// Says what was run.
    fn summary(&self) -> String {
        let records = self.0.records();
        let seeds: BTreeSet<u64> = records.iter().map(|record| record.seed).collect();
        format!(
            "{} trainings of {} algorithms, with {} seeds; ± is half of the 95 % confidence interval over the seeds.\n\n",
            records.len(),
            self.algorithms().len(),
            seeds.len()
        )
    }

    /// Writes a table of a measure over partitions and numbers of ranks.
    fn matrix(&self, task: &str, measure: Measure, title: &str) -> String {
        let records = || self.0.records().iter().filter(|record| record.place.task == task);
        let ranks: BTreeSet<usize> = records().map(|record| record.place.ranks).collect();
        let partitions = PARTITIONS.map(|partition| partition.to_string());
        let columns: Vec<(String, usize)> = partitions
            .iter()
            .filter(|partition| records().any(|record| record.place.partition == **partition))
            .flat_map(|partition| ranks.iter().map(move |ranks| (partition.clone(), *ranks)))
            .collect();
        if columns.is_empty() {
            return String::new();
        }
        let head: Vec<String> =
            columns.iter().map(|(partition, ranks)| format!("{partition}, {ranks}")).collect();
        let mut text = format!(
            "### {title}\n\n| algorithm | | {} |\n|---|---|{}\n",
            head.join(" | "),
            "---|".repeat(columns.len())
        );
        for (trigram, algorithm) in self.algorithms() {
            let cell = |(partition, ranks): &(String, usize)| {
                let found = self.estimate(&algorithm, task, partition, *ranks, measure);
                let scale = if measure == Measure::Errors { 100.0 } else { 1.0 };
                found.map_or_else(String::new, |estimate| shown(estimate, scale))
            };
            let cells: Vec<String> = columns.iter().map(cell).collect();
            let _ = writeln!(text, "| `{algorithm}` | {trigram} | {} |", cells.join(" | "));
        }
        text + "\n"
    }

    /// Writes the table of what an accuracy costs.
    fn costs(&self) -> String {
        let percent = 100.0 * LEARNED;
        let mut text = format!(
            "### Digits, {RANKS} ranks: what an accuracy of {percent} % costs\n\n\
             Bytes and seconds of a rank, with equal data, and with Dirichlet(0.1) data after the stroke.\n\n\
             | algorithm | | KiB a step | KiB | s, 100 Mbit/s | s, 1 Gbit/s | s, 10 Gbit/s | consensus distance |\n\
             |---|---|---|---|---|---|---|---|\n"
        );
        for (trigram, algorithm) in self.algorithms() {
            let both = |measure: Measure, scale: f64| {
                let of = |partition: &str| {
                    let found = self.estimate(&algorithm, "digits", partition, RANKS, measure);
                    found.map_or_else(String::new, |estimate| figure(estimate.mean * scale))
                };
                format!("{} / {}", of("equal"), of("dirichlet(0.1)"))
            };
            let steps = self.0.records().iter().find(|record| record.place.task == "digits");
            let steps = steps.map_or(1.0, |record| record.last().step as f64);
            let seconds =
                MEGABITS.map(|megabits| both(Measure::SecondsTo(LEARNED, Link::of_megabits(megabits)), 1.0));
            let _ = writeln!(
                text,
                "| `{algorithm}` | {trigram} | {} | {} | {} | {} |",
                both(Measure::Bytes, 1.0 / 1024.0 / steps),
                both(Measure::BytesTo(LEARNED), 1.0 / 1024.0),
                seconds.join(" | "),
                both(Measure::Consensus, 1.0)
            );
        }
        text + "\n![Errors against bytes sent](which-algorithm-bytes.svg)\n\n![Consensus distance by step](which-algorithm-consensus.svg)\n\n"
    }

    /// Returns the picture of the consensus distance on the digits over the steps.
    fn consensus(&self) -> String {
        let curve = |record: &Record| -> Vec<(f64, f64)> {
            record.curve.iter().map(|state| (state.step as f64, state.consensus)).collect()
        };
        let title = "Digits, 8 ranks, Dirichlet(0.1): consensus distance of the replicas, seed 0";
        Picture {
            title,
            x: "steps",
            y: "consensus distance",
            log_x: false,
            log_y: true,
            drawn: self.drawn(curve),
        }
        .svg()
    }

    /// Returns the picture of errors on the digits over bytes.
    fn bytes(&self) -> String {
        let point = |record: &Record| -> Vec<(f64, f64)> {
            let state = record.last();
            vec![(state.bytes / 1024.0, 100.0 * Measure::Errors.of(record))]
        };
        let title =
            "Digits, 8 ranks, Dirichlet(0.1): errors after 300 steps against KiB sent by a rank, seed 0";
        Picture { title, x: "KiB sent", y: "errors, %", log_x: true, log_y: false, drawn: self.drawn(point) }
            .svg()
    }

    fn drawn(&self, points: impl Fn(&Record) -> Vec<(f64, f64)>) -> Vec<Drawn> {
        let of = |(_, algorithm): (String, String)| {
            let place = Place {
                algorithm,
                task: "digits".to_owned(),
                partition: "dirichlet(0.1)".to_owned(),
                ranks: RANKS,
            };
            let points = self.0.at(&place).first().map(|record| points(record)).unwrap_or_default();
            Drawn { name: place.algorithm, points }
        };
        self.algorithms().into_iter().map(of).collect()
    }
}

fn shown(estimate: Estimate, scale: f64) -> String {
    let Estimate { mean, half, .. } = estimate;
    match half.is_finite() {
        true => format!("{} ± {}", figure(mean * scale), figure(half * scale)),
        false => figure(mean * scale),
    }
}

/// Returns a number with two or three digits that count; a dash for one that is not finite.
pub(super) fn figure(number: f64) -> String {
    let size = number.abs();
    match () {
        () if !number.is_finite() => "—".to_owned(),
        () if size >= 1e5 || (size < 1e-3 && size > 0.0) => format!("{number:.1e}"),
        () if size >= 100.0 => format!("{number:.0}"),
        () if size >= 10.0 => format!("{number:.1}"),
        () if size >= 0.1 || size == 0.0 => format!("{number:.2}"),
        () => format!("{number:.4}"),
    }
}
