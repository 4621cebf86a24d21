//! The page that the suite writes, docs/which-algorithm.md: tables between two marks, with pictures and the kept
//! record next to it.
//!
//! | file | content |
//! |---|---|
//! | `page/situations.rs` | the summary: which algorithm in which situation |
//! | `page/tables.rs` | the results: losses and errors, differences to all-reduce, costs |
//! | `page/pictures.rs` | errors by bytes, and consensus distance by step |
//! | `orderings/table.rs` | published orderings |

mod pictures;
mod situations;
mod tables;

use super::orderings::{self, LEARNED, SKEWED};
use super::{Estimate, MatrixCell, ResultMeasure, Results, SuiteRecord, keep};
use hexagram::physical::{input, output};
use hexagram::{Error, Result};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

const PAGE: &str = "which-algorithm.md";
const BEGIN: &str = "<!-- suite: begin -->";
const END: &str = "<!-- suite: end -->";
/// The most bytes of the page.
const LONGEST: u64 = 16 << 20;
/// Number of ranks of the table of costs and of the pictures: enough that all-reduce sends even a small model in
/// parts.
const RANKS: usize = 25;
/// Trigrams, synchronous ones first.
const TRIGRAMS: [&str; 8] = ["☰", "☴", "☱", "☵", "☲", "☶", "☳", "☷"];
/// Algorithm that the others are compared to.
const REFERENCE: &str = "gradient-allreduce";

/// Makes sure, before hours of training, that [`write_pages`] can write into a folder. Creates the page without
/// tables if it is missing.
///
/// # Errors
/// [`Error::System`] if the page cannot be read or written, [`Error::Usage`] if it has no marks.
pub fn create_page(folder: &Path) -> Result<()> {
    let path = folder.join(PAGE);
    if path.exists() {
        around(&path)?;
        return output::check_writable(&path).map_err(|cause| not_written(&path, cause));
    }
    let created = std::fs::create_dir_all(folder);
    created.map_err(|cause| not_written(&path, cause))?;
    write(&path, &format!("# Which algorithm?\n\n{BEGIN}\n{END}\n"))
}

/// Writes tables and pictures of results into a folder with which-algorithm.md, whose text around them stays.
///
/// # Errors
/// [`Error::System`] or [`Error::Usage`] if the page cannot be read or written, or has no marks.
pub fn write_pages(results: &Results, folder: &Path) -> Result<()> {
    let path = folder.join(PAGE);
    let [before, after] = around(&path)?;
    let matrix = results.of_matrix();
    let page = ResultsPage(&matrix);
    write(&path, &format!("{before}{BEGIN}\n{}{END}{after}", page.text(results)))?;
    let pictures = folder.join("pictures");
    std::fs::create_dir_all(&pictures).map_err(|cause| not_written(&pictures, cause))?;
    write(&pictures.join("which-algorithm-consensus.svg"), &page.consensus())?;
    write(&pictures.join("which-algorithm-bytes.svg"), &page.bytes())?;
    keep(results, folder)
}

/// Returns the text of a page before and after the suite's part.
fn around(path: &Path) -> Result<[String; 2]> {
    let remedy = "choose a --docs folder with the original which-algorithm.md, or without one";
    let text = input::read_text(path, LONGEST)
        .map_err(|cause| Error::system(format!("read {}", path.display()), cause, remedy))?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some([before, rest.split_once(END)?.1]));
    let parts = parts.map(|parts| parts.map(str::to_owned));
    parts
        .ok_or_else(|| Error::usage(format!("{} has no lines `{BEGIN}` and `{END}`", path.display()), remedy))
}

/// Writes a file, or leaves it as it was.
fn write(path: &Path, text: &str) -> Result<()> {
    output::write(path, |out| out.write_all(text.as_bytes())).map_err(|cause| not_written(path, cause))
}

fn not_written(path: &Path, cause: io::Error) -> Error {
    let remedy = "choose a writable --docs folder, with free disk space";
    Error::system(format!("write {}", path.display()), cause, remedy)
}

struct ResultsPage<'a>(&'a Results);

impl ResultsPage<'_> {
    /// Returns trigram and name of each algorithm of the matrix, ordered by trigram. Variants with options, which
    /// only orderings compare, are left out.
    fn algorithms(&self) -> Vec<(String, String)> {
        let plain = |record: &&SuiteRecord| !record.place.algorithm.contains('(');
        let of = |record: &SuiteRecord| (record.trigram.clone(), record.place.algorithm.clone());
        let named: BTreeSet<(String, String)> = self.0.records().iter().filter(plain).map(of).collect();
        let mut named: Vec<(String, String)> = named.into_iter().collect();
        named.sort_by_key(|(trigram, name)| {
            (TRIGRAMS.iter().position(|known| known == trigram), name != REFERENCE, name.clone())
        });
        named
    }

    /// Returns a measure of each run of an algorithm at a place, with its seed.
    fn runs(&self, algorithm: &str, cell: &Column, measure: ResultMeasure) -> Vec<(u64, f64)> {
        let records = self.0.at(&cell.place(algorithm));
        records.into_iter().map(|record| (record.seed, measure.of(record))).collect()
    }

    /// Estimates a measure of an algorithm at a place.
    fn estimate(&self, algorithm: &str, cell: &Column, measure: ResultMeasure) -> Option<Estimate> {
        self.0.estimate(&cell.place(algorithm), measure)
    }

    fn text(&self, all: &Results) -> String {
        self.counts(all) + &self.situations() + &self.tables() + &orderings::table(all)
    }

    /// Writes how many trainings were run in the matrix and for orderings.
    fn counts(&self, all: &Results) -> String {
        let records = all.records();
        let seeds = |results: &Results| {
            results.records().iter().map(|record| record.seed).collect::<BTreeSet<u64>>().len()
        };
        let mut with = format!("{} seeds", seeds(self.0));
        if seeds(all) > seeds(self.0) {
            with += &format!(", and {} for orderings", seeds(all));
        }
        let variants: BTreeSet<&String> = records.iter().map(|record| &record.place.algorithm).collect();
        let algorithms = self.algorithms().len();
        let ranks: BTreeSet<usize> = records.iter().map(|record| record.place.ranks).collect();
        let count = |ranks: &usize| {
            let found = records.iter().filter(|record| record.place.ranks == *ranks).count();
            format!("{found} with {ranks} ranks")
        };
        let counts: Vec<String> = ranks.iter().map(count).collect();
        format!(
            "{} trainings of {algorithms} algorithms and {} variants of them, with {with}: {}. Blank cells were not run.\n\n",
            records.len(),
            variants.len() - algorithms,
            counts.join(", ")
        )
    }
}

/// Place of the matrix without its algorithm.
#[derive(Debug, Clone, PartialEq)]
struct Column {
    task: &'static str,
    partition: String,
    ranks: usize,
}

impl Column {
    fn new(task: &'static str, partition: impl Into<String>, ranks: usize) -> Self {
        Column { task, partition: partition.into(), ranks }
    }

    fn place(&self, algorithm: &str) -> MatrixCell {
        MatrixCell {
            algorithm: algorithm.to_owned(),
            task: self.task.to_owned(),
            partition: self.partition.clone(),
            ranks: self.ranks,
        }
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
