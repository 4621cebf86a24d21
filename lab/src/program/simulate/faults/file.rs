//! Files of faults: one fault per line, each of which must be possible after the faults before it.

use super::scene::LIMIT;
use crate::program::simulate::file;
use hexagram::physical::input;
use hexagram::physical::sim::{Fault, FaultKind};
use hexagram::{Error, Result};
use std::path::Path;

/// Reads the faults of a file, in the order of their times.
///
/// # Errors
/// The file and the line that is not a fault, or that is impossible there, in one line.
pub(super) fn read(path: &Path, ranks: usize, hosts: usize) -> Result<Vec<Fault>> {
    let text = file::read(path, "faults")?;
    let in_line = |number, error| file::in_file(path, input::in_line(number, error));
    let fault = |(number, line): (usize, &str)| {
        let fault = line.parse::<Fault>().and_then(|fault| fault.check(ranks, hosts).map(|()| fault));
        fault.map(|fault| (number, fault)).map_err(|error| in_line(number, error))
    };
    let mut faults = input::statements(&text).map(fault).collect::<Result<Vec<_>>>()?;
    faults.sort_by_key(|(_, fault)| fault.at);
    let mut conditions = vec![ProcessCondition::Well; ranks];
    for (number, fault) in &faults {
        check_time(fault)
            .and_then(|()| follow(fault, &mut conditions, hosts))
            .map_err(|error| in_line(*number, error))?;
    }
    Ok(faults.into_iter().map(|(_, fault)| fault).collect())
}

/// Condition of a rank after some faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessCondition {
    Well,
    Stopped,
    Dead,
}

fn check_time(fault: &Fault) -> Result<()> {
    if fault.at < LIMIT {
        return Ok(());
    }
    let what =
        format!("`{fault}` is after the end: a rank that still runs after {} s hangs", LIMIT.as_secs());
    Err(Error::usage(what, "choose an earlier time; a training takes about 10 s"))
}

/// Applies a fault; fails if it is impossible after the earlier faults.
fn follow(fault: &Fault, conditions: &mut [ProcessCondition], hosts: usize) -> Result<()> {
    let (rank, after, needed) = match fault.kind {
        FaultKind::RankDies(rank) => (rank, ProcessCondition::Dead, None),
        FaultKind::RankStops(rank) => (rank, ProcessCondition::Stopped, Some(ProcessCondition::Well)),
        FaultKind::RankResumes(rank) => (rank, ProcessCondition::Well, Some(ProcessCondition::Stopped)),
        FaultKind::HostDies(host) => {
            let each = conditions.len() / hosts;
            conditions[host * each..(host + 1) * each].fill(ProcessCondition::Dead);
            return Ok(());
        }
        FaultKind::Cut(_) | FaultKind::Heal | FaultKind::Slow { .. } => return Ok(()),
    };
    let before = std::mem::replace(&mut conditions[rank], after);
    let is = match before {
        ProcessCondition::Dead => "is dead",
        ProcessCondition::Stopped if needed == Some(ProcessCondition::Well) => "is stopped",
        ProcessCondition::Well if needed == Some(ProcessCondition::Stopped) => "runs",
        _ => return Ok(()),
    };
    let what = format!("`{fault}` cannot be: rank {rank} {is} by then");
    Err(Error::usage(what, "order the faults so that a rank stops before it resumes, and dies at most once"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_line_is_named() {
        let path = std::env::temp_dir().join(format!("hexagram-faults-{}", std::process::id()));
        let found = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path, 4, 2).map_err(|error| error.to_string())
        };
        for (text, line, expected) in [
            ("# nothing\n\n3s rank 9 dies\n", 3, "0 to 3"),
            ("1s heal # well\n3 rank 1 dies\n", 2, "3s rank 2 dies"),
            ("3s rank 2 stops\n300s heal\n", 2, "`300s heal` is after the end"),
            ("3s rank 2 resumes\n", 1, "rank 2 runs by then"),
            ("# later first\n7s rank 2 resumes\n9s rank 2 stops\n", 2, "rank 2 runs by then"),
            ("3s rank 2 stops\n4s rank 2 stops\n", 2, "rank 2 is stopped by then"),
            ("3s host 1 dies\n4s rank 3 dies\n", 2, "rank 3 is dead by then"),
            ("3s cut 0 -> 0\n", 1, "host 0 is on both sides"),
        ] {
            let error = found(text).unwrap_err();
            assert!(error.contains(&format!("line {line}:")) && error.contains(expected), "{error}");
        }
        assert_eq!(found("1s heal # well\n").unwrap(), ["1s heal".parse().unwrap()]);
        let sorted = found("7s rank 2 resumes\n3s rank 2 stops\n8s host 0 dies\n").unwrap();
        assert_eq!(sorted.iter().map(|fault| fault.at.as_secs()).collect::<Vec<_>>(), [3, 7, 8]);
        std::fs::remove_file(&path).unwrap();
    }
}
