//! Runs the suite, and writes docs/which-algorithm.md: `cargo run --release --example suite`.
//!
//! Each training is a line of JSON in runs/suite.jsonl as soon as it is done; a suite that was ended goes on from there.
//! With names of algorithms, only these are run. `--short` runs the short form; `--judge` trains nothing.

use hexagram::algorithms::registry;
use hexagram::physical::stdout::print;
use hexagram::{Error, Result};
use hexagram_lab::suite::{Record, Results, Suite, run_all, write_pages};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

const RECORDS: &str = "runs/suite.jsonl";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match suite(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("suite: {error}");
            ExitCode::FAILURE
        }
    }
}

fn suite(arguments: &[String]) -> Result<()> {
    let (flags, names): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|text| text.starts_with("--"));
    let given = |flag: &str| flags.iter().any(|given| *given == flag);
    if let Some(unknown) = flags.iter().find(|flag| !["--short", "--judge"].contains(&flag.as_str())) {
        return Err(Error::usage(format!("there is no option {unknown}"), "use --short, --judge, or names"));
    }
    let algorithms = match names[..] {
        [] => registry::all(),
        _ => names.iter().map(|name| registry::named(name)).collect::<Result<_>>()?,
    };
    let suite = if given("--short") { Suite::short(algorithms) } else { Suite::whole(algorithms) }?;
    let mut records = read()?;
    if !given("--judge") {
        run(&suite, &mut records)?;
    }
    write_pages(&Results::new(records), Path::new("docs"))?;
    let _ = print("docs/which-algorithm.md is up to date");
    Ok(())
}

/// Reads what was run before.
fn read() -> Result<Vec<Record>> {
    let mut text = String::new();
    if let Ok(mut file) = File::open(RECORDS) {
        let remedy = "remove it to begin anew";
        file.read_to_string(&mut text)
            .map_err(|cause| Error::system(format!("read {RECORDS}"), cause, remedy))?;
    }
    text.lines().map(Record::parse).collect()
}

/// Runs what was not run before, and appends it.
fn run(suite: &Suite, records: &mut Vec<Record>) -> Result<()> {
    let done: BTreeSet<_> = records.iter().map(|record| (record.place.clone(), record.seed)).collect();
    let mut cells = suite.cells()?;
    cells.retain(|cell| !done.contains(&(cell.place(), cell.seed)));
    let failed = |cause| Error::system(format!("write {RECORDS}"), cause, "see that you may write in runs/");
    std::fs::create_dir_all("runs").map_err(failed)?;
    let mut file = OpenOptions::new().create(true).append(true).open(RECORDS).map_err(failed)?;
    let count = cells.len();
    let mut made = 0;
    run_all(cells, |record| {
        writeln!(file, "{}", record.json()).map_err(failed)?;
        made += 1;
        if made % 100 == 0 {
            eprintln!("{made} of {count} trainings");
        }
        records.push(record);
        Ok(())
    })
}
