//! `suite`: runs the suite with the algorithms of a registry, and writes its page.
//!
//! Each training is a line of JSON in the file of records, written when it ends. A suite that was stopped continues
//! from there. `suite/records.rs` is that file.

mod records;

use super::ChosenAlgorithm;
use super::console::{ProgramError, print};
use crate::suite::{Cell, MatrixCell, Results, Suite, SuiteRecord, create_page, run_all, write_pages};
use clap::Parser;
use hexagram::algorithms::Registry;
use hexagram::{AnyAlgorithm, Error, Result};
use records::{RecordFile, read};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Train by every algorithm on all tasks, with equal and with skewed data, on few ranks and many, and write
/// which-algorithm.md.
///
/// Ranks are simulated, so that every run is reproducible. Earlier trainings are not repeated.
/// docs/which-algorithm.md is replaced only by a complete suite; a partial one writes runs/which-algorithm.md.
#[derive(Parser, Debug, Clone)]
pub struct SuiteOptions {
    /// Names of algorithms to run [default: all]
    pub algorithms: Vec<String>,
    /// Run the short suite: quadratics and digits, 4 ranks, two seeds
    #[arg(long)]
    pub short: bool,
    /// Train nothing, and write the page of the recorded trainings
    #[arg(long)]
    pub judge: bool,
    /// Discard the records of these algorithms, as after a change of one
    #[arg(long, conflicts_with = "judge")]
    pub anew: bool,
    /// File with a line of JSON for each training
    #[arg(long, value_name = "FILE", default_value = "runs/suite.jsonl")]
    pub records: PathBuf,
    /// Folder for which-algorithm.md and its plots [default: docs if it has the page and the suite is complete, else
    /// runs]
    #[arg(long, value_name = "FOLDER")]
    pub docs: Option<PathBuf>,
}

/// Trainings, by place and seed.
type Trainings = BTreeSet<(MatrixCell, u64)>;

/// Runs `suite` with the algorithms of a registry.
///
/// # Errors
/// The first invalid option, in one line, before any training; errors of a training, with its place.
pub fn suite(registry: &Registry, options: &SuiteOptions) -> Result<(), ProgramError> {
    let algorithms = named(registry, &options.algorithms)?;
    if options.judge {
        let records = read(&options.records)?;
        if records.is_empty() {
            let what = format!("{} has no records for the page", options.records.display());
            return Err(Error::usage(what, "run the suite without --judge").into());
        }
        let page = page(registry, options, &records.iter().map(training).collect())?;
        create_page(&page.folder)?;
        return page.write(records);
    }
    let mut file = RecordFile::open(&options.records)?;
    let word = |record: &SuiteRecord| record.place.algorithm.split('(').next().unwrap_or_default().to_owned();
    let stays =
        |record: &SuiteRecord| !options.anew || algorithms.iter().all(|own| own.name() != word(record));
    let mut done: Trainings = file.records().iter().filter(|record| stays(record)).map(training).collect();
    let suite = if options.short { Suite::short } else { Suite::whole };
    let mut cells = suite(algorithms.clone())?.cells()?;
    cells.retain(|cell| done.insert((cell.place(), cell.seed)));
    let page = page(registry, options, &done)?;
    create_page(&page.folder)?;
    if options.anew {
        file.retain(stays)?;
    }
    run(cells, &mut file)?;
    page.write(file.records().to_vec())
}

fn training(record: &SuiteRecord) -> (MatrixCell, u64) {
    (record.place.clone(), record.seed)
}

/// Folder of the page.
struct PageFolder {
    folder: PathBuf,
    /// Number of missing trainings of the whole suite, if the page of the documentation is unchanged because of them.
    lacking: usize,
}

/// Returns the folder of the page of some trainings: that of the documentation only for the whole suite, unless the
/// options name one.
fn page(registry: &Registry, options: &SuiteOptions, done: &Trainings) -> Result<PageFolder> {
    if let Some(folder) = &options.docs {
        return Ok(PageFolder { folder: folder.clone(), lacking: 0 });
    }
    let there = Path::new("docs/which-algorithm.md").exists();
    let lacking = if there { lacking(registry, done)? } else { 0 };
    let folder = if there && lacking == 0 { "docs" } else { "runs" };
    Ok(PageFolder { folder: folder.into(), lacking })
}

/// Returns the number of trainings that are missing from the whole suite of a registry.
fn lacking(registry: &Registry, done: &Trainings) -> Result<usize> {
    let whole = Suite::whole(registry.all().to_vec())?.cells()?;
    Ok(whole.iter().filter(|cell| !done.contains(&(cell.place(), cell.seed))).count())
}

impl PageFolder {
    /// Writes the page of the records, and prints its path.
    fn write(&self, records: Vec<SuiteRecord>) -> Result<(), ProgramError> {
        write_pages(&Results::new(records), &self.folder)?;
        let path = self.folder.join("which-algorithm.md");
        print(&format!("{} is up to date", path.display()))?;
        if self.lacking > 0 {
            let what = "docs/which-algorithm.md is unchanged, because the suite is incomplete";
            let why = format!("{} trainings are missing (--docs docs replaces it anyway)", self.lacking);
            print(&format!("{what}: {why}"))?;
        }
        Ok(())
    }
}

/// Returns the algorithms of these names.
fn named(registry: &Registry, names: &[String]) -> Result<Vec<AnyAlgorithm>> {
    let own = |chosen: ChosenAlgorithm| match chosen.spelling == chosen.algorithm.name() {
        true => Ok(chosen.algorithm),
        false => {
            let what = format!(
                "the suite accepts names of algorithms without options, and {} has options",
                chosen.spelling
            );
            Err(Error::usage(what, "register an algorithm with these options as its defaults"))
        }
    };
    ChosenAlgorithm::all(registry, names)?.into_iter().map(own).collect()
}

/// Runs trainings, and appends their records.
fn run(cells: Vec<Cell>, file: &mut RecordFile) -> Result<()> {
    let count = cells.len();
    let mut made = 0;
    run_all(cells, |record| {
        file.push(record)?;
        made += 1;
        if made % 100 == 0 {
            let _ = io::stderr().write_all(format!("{made} of {count} trainings\n").as_bytes());
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of the documentation is replaced by nothing less.
    #[test]
    fn only_all_trainings_are_the_whole_suite() {
        let registry = Registry::built_in();
        let trainings = |suite: Result<Suite>| -> Trainings {
            suite.unwrap().cells().unwrap().iter().map(|cell| (cell.place(), cell.seed)).collect()
        };
        let all = || registry.all().to_vec();
        let whole = trainings(Suite::whole(all()));
        assert_eq!(lacking(&registry, &whole).unwrap(), 0);
        assert_eq!(
            lacking(&registry, &trainings(Suite::short(all()))).unwrap(),
            whole.len() - 8 * all().len()
        );
        let named = trainings(Suite::whole(vec![registry.named("d-psgd").unwrap()]));
        assert_eq!(lacking(&registry, &named).unwrap(), whole.len() - named.len());
    }
}
