//! The record of the suite in the folder of its page. Tables, pictures and orderings come from it. It is rounded, so
//! that tests judge it without training.

use super::orderings::{LEARNED, SKEWED};
use super::{MatrixCell, Results, SuiteRecord, TrainingState, places};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use hexagram::physical::output;
use hexagram::{Error, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

const NAME: &str = "which-algorithm.jsonl.gz";
/// Accuracies for which every record has the bytes and seconds of the first state that reached it.
const ACCURACIES: [f64; 3] = [0.5, 0.8, LEARNED];
/// Digits to which numbers are kept.
const DIGITS: i32 = 6;

/// Reads the record from the folder of the page.
///
/// # Errors
/// [`Error::System`] if it cannot be read, [`Error::Usage`] if one of its lines is not a record.
pub fn kept(folder: &Path) -> Result<Results> {
    let path = folder.join(NAME);
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| GzDecoder::new(file).read_to_string(&mut text));
    let remedy = "use the folder of which-algorithm.md, with an undamaged record";
    read.map_err(|cause| Error::system(format!("read {}", path.display()), cause, remedy))?;
    let lines = (1..).zip(text.lines());
    let records = lines.map(|(number, line)| SuiteRecord::parse_line(&path, number, line.as_bytes()));
    Ok(Results::new(records.collect::<Result<_>>()?))
}

/// Writes the record of results into a folder, where [`kept`] finds it.
///
/// # Errors
/// [`Error::System`] if it cannot be written.
pub(super) fn keep(results: &Results, folder: &Path) -> Result<()> {
    let whole = places();
    let write = || -> io::Result<()> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        for record in results.records() {
            writeln!(encoder, "{}", condensed(record, &whole).json())?;
        }
        let bytes = encoder.finish()?;
        output::write(&folder.join(NAME), |out| out.write_all(&bytes))
    };
    write().map_err(|cause| {
        Error::system(
            format!("write {}", folder.join(NAME).display()),
            cause,
            "check its permissions and free disk space",
        )
    })
}

/// Returns a record with rounded numbers. It keeps the whole curve only if orderings or pictures need it; otherwise
/// the first state, those that first reach an accuracy, and the last.
fn condensed(record: &SuiteRecord, whole: &BTreeSet<MatrixCell>) -> SuiteRecord {
    let MatrixCell { task, partition, ranks, .. } = &record.place;
    let pictured = (task.as_str(), partition.as_str(), *ranks) == ("digits", SKEWED, 25);
    let reaches = |accuracy: f64| {
        record.curve.iter().position(|state| state.accuracy.is_some_and(|found| found >= accuracy))
    };
    let mut states: BTreeSet<usize> = ACCURACIES.into_iter().filter_map(reaches).collect();
    states.extend([0, record.curve.len() - 1]);
    if pictured || whole.contains(&record.place) {
        states.extend(0..record.curve.len());
    }
    let state = |at: usize| {
        let state = &record.curve[at];
        TrainingState {
            loss: rounded(state.loss),
            accuracy: state.accuracy.map(rounded),
            consensus: rounded(state.consensus),
            bytes: state.bytes.round(),
            ..*state
        }
    };
    SuiteRecord {
        own_loss: rounded(record.own_loss),
        distance: record.distance.map(rounded),
        curve: states.into_iter().map(state).collect(),
        ..record.clone()
    }
}

/// Returns a number with six digits.
fn rounded(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let scale = 10f64.powi(DIGITS - 1 - number.abs().log10().floor() as i32);
    let rounded = (number * scale).round() / scale;
    if rounded.is_finite() { rounded } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_six_digits() {
        assert_eq!([0.0, 123_456_789.0, -1.234_567_8].map(rounded), [0.0, 123_457_000.0, -1.23457]);
        assert!((rounded(1.234_567_8e-13) - 1.234_57e-13).abs() < 1e-26);
        assert_eq!(rounded(f64::INFINITY), f64::INFINITY);
    }
}
