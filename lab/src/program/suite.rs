//! `suite`: runs the suite with the algorithms of a registry, and writes its page.
//!
//! Each training is a line of JSON in the file of records as soon as it is done; a suite that was ended goes on from there.

use super::Chosen;
use super::say::{Failure, print};
use crate::suite::{Record, Results, Suite, create_page, run_all, write_pages};
use clap::Parser;
use hexagram::algorithms::Registry;
use hexagram::{AnyAlgorithm, Error, Result};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Train with every algorithm on all tasks, with data alike and not, few ranks and many, and write which-algorithm.md.
///
/// Ranks are simulated, so that every run is like any other. What was run before is not run again.
#[derive(Parser, Debug, Clone)]
pub struct SuiteOptions {
    /// Names of algorithms to run [default: all]
    pub algorithms: Vec<String>,
    /// Run the short form: quadratics and digits, 4 ranks, two seeds
    #[arg(long)]
    pub short: bool,
    /// Train nothing, and write the page of what was run before
    #[arg(long)]
    pub judge: bool,
    /// Forget what was run before with these algorithms, as after a change of one
    #[arg(long, conflicts_with = "judge")]
    pub anew: bool,
    /// File with a line of JSON for each training
    #[arg(long, value_name = "FILE", default_value = "runs/suite.jsonl")]
    pub records: PathBuf,
    /// Folder of which-algorithm.md and its pictures [default: docs if it is there, else runs]
    #[arg(long, value_name = "FOLDER")]
    pub docs: Option<PathBuf>,
}

/// Runs `suite` with the algorithms of a registry.
///
/// # Errors
/// One line that says what is wrong with the options, before anything is trained; errors of a training, by its place.
pub fn suite(registry: &Registry, options: &SuiteOptions) -> Result<(), Failure> {
    let algorithms = named(registry, &options.algorithms)?;
    let docs = options.docs();
    let mut records = read(&options.records)?;
    if options.judge && records.is_empty() {
        let what = format!("{} has no records, of which a page could be made", options.records.display());
        return Err(Error::usage(what, "run the suite without --judge").into());
    }
    create_page(&docs)?;
    if options.anew {
        let word = |record: &Record| record.place.algorithm.split('(').next().unwrap_or_default().to_owned();
        records.retain(|record| algorithms.iter().all(|own| own.name() != word(record)));
        write_all(&options.records, &records)?;
    }
    let suite = if options.short { Suite::short(algorithms) } else { Suite::whole(algorithms) }?;
    if !options.judge {
        run(&suite, &options.records, &mut records)?;
    }
    write_pages(&Results::new(records), &docs)?;
    print(&format!("{} is up to date", docs.join("which-algorithm.md").display()))?;
    Ok(())
}

impl SuiteOptions {
    fn docs(&self) -> PathBuf {
        let found = Path::new("docs/which-algorithm.md").exists();
        self.docs.clone().unwrap_or_else(|| if found { "docs" } else { "runs" }.into())
    }
}

/// Returns the algorithms of these names.
fn named(registry: &Registry, names: &[String]) -> Result<Vec<AnyAlgorithm>> {
    let own = |chosen: Chosen| match chosen.spelling == chosen.algorithm.name() {
        true => Ok(chosen.algorithm),
        false => {
            let what =
                format!("the suite knows algorithms by their names, and {} has options", chosen.spelling);
            Err(Error::usage(what, "give the registry an algorithm with these options as its defaults"))
        }
    };
    Chosen::all(registry, names)?.into_iter().map(own).collect()
}

/// Reads what was run before: nothing if there is no file. What a suite that was killed left of its last line is cut off: that
/// training is run again.
fn read(path: &Path) -> Result<Vec<Record>> {
    let failed = |cause| Error::system(format!("read {}", path.display()), cause, "remove it to begin anew");
    let mut bytes = match std::fs::read(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.map_err(failed)?,
    };
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let rest = bytes.split_off(whole);
    let text = String::from_utf8(bytes).map_err(|cause| failed(io::Error::other(cause)))?;
    let mut records = text.lines().map(Record::parse).collect::<Result<Vec<Record>>>()?;
    if !rest.is_empty() {
        let file = || OpenOptions::new().append(true).open(path);
        let mended = match Record::parse(&String::from_utf8_lossy(&rest)) {
            Ok(record) => {
                records.push(record);
                file().and_then(|mut file| file.write_all(b"\n"))
            }
            Err(error) if !Record::may_begin(&rest) => return Err(error),
            Err(_) => file().and_then(|file| file.set_len(whole as u64)),
        };
        mended.map_err(|cause| not_written(path, cause))?;
    }
    Ok(records)
}

/// Replaces the records.
fn write_all(path: &Path, records: &[Record]) -> Result<()> {
    let text: String = records.iter().map(|record| format!("{}\n", record.json())).collect();
    std::fs::create_dir_all(folder(path))
        .and_then(|()| std::fs::write(path, text))
        .map_err(|cause| not_written(path, cause))
}

/// Runs what was not run before, and appends it.
fn run(suite: &Suite, path: &Path, records: &mut Vec<Record>) -> Result<()> {
    let done: BTreeSet<_> = records.iter().map(|record| (record.place.clone(), record.seed)).collect();
    let mut cells = suite.cells()?;
    cells.retain(|cell| !done.contains(&(cell.place(), cell.seed)));
    let failed = |cause| not_written(path, cause);
    std::fs::create_dir_all(folder(path)).map_err(failed)?;
    let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    let count = cells.len();
    let mut made = 0;
    run_all(cells, |record| {
        // In one piece, so that a suite that is ended leaves whole lines.
        file.write_all(format!("{}\n", record.json()).as_bytes()).map_err(failed)?;
        made += 1;
        if made % 100 == 0 {
            let _ = io::stderr().write_all(format!("{made} of {count} trainings\n").as_bytes());
        }
        records.push(record);
        Ok(())
    })
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn not_written(path: &Path, cause: io::Error) -> Error {
    Error::system(format!("write {}", path.display()), cause, "see that you may write there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_of_a_line_is_cut_off_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("hexagram-records-{}.jsonl", std::process::id()));
        // The last one ends in the middle of a character.
        for rest in
            [&b"{"[..], br#"{"algorithm":"d-psgd","tri"#, b"{\"algorithm\":\"d-psgd\",\"trigram\":\"\xe2\x98"]
        {
            std::fs::write(&path, rest).unwrap();
            assert!(read(&path).unwrap().is_empty());
            assert_eq!(std::fs::read(&path).unwrap(), b"");
        }
        for other in ["a file of somebody else", "garbage\n{\"algorithm\":"] {
            std::fs::write(&path, other).unwrap();
            assert!(read(&path).unwrap_err().to_string().contains("is no record of a training"));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
