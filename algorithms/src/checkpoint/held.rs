//! The files of a checkpoint that the directory of a rank holds, as text for the other ranks.
//!
//! ```text
//! step-000120 4 0-1,3 step-000120 (8a3f…)    name, number of ranks, saved ranks, name and number of the save
//! ```

use super::folder::{MOST_RANKS, Name};
use std::fmt;
use std::str::FromStr;

/// Files of one checkpoint in the directory of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldFiles {
    pub(super) name: Name,
    /// Name and number of the save, as the files state it; empty if they are unreadable.
    pub(super) save: String,
    /// Number of ranks that have saved it.
    pub(super) ranks: usize,
    /// Saved ranks whose files are here, in ascending order.
    pub(super) saved: Vec<usize>,
}

impl fmt::Display for HeldFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeldFiles { name, save, ranks, saved } = self;
        let runs = saved.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        });
        write!(f, "{name} {ranks} {} {save}", runs.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for HeldFiles {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let mut parts = line.splitn(4, ' ');
        let mut next = || parts.next().ok_or(());
        let name = next()?.parse().map_err(drop)?;
        let ranks: usize = next()?.parse().map_err(drop)?;
        if ranks > MOST_RANKS {
            return Err(());
        }
        let mut saved = Vec::new();
        for run in next()?.split(',').filter(|run| !run.is_empty()) {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let [first, last]: [usize; 2] = [first.parse().map_err(drop)?, last.parse().map_err(drop)?];
            if last >= ranks {
                return Err(());
            }
            saved.extend(first..=last);
        }
        Ok(HeldFiles { name, save: next()?.to_owned(), ranks, saved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_they_are_written() {
        let name = Name { step: 120, before: 1 };
        for saved in [vec![], vec![0], vec![0, 1, 2], vec![0, 2, 3, 9], (0..10).collect()] {
            for save in ["", "step-000120.1 (8a3f)"] {
                let held = HeldFiles { name, save: save.to_owned(), ranks: 10, saved: saved.clone() };
                assert_eq!(held.to_string().parse(), Ok(held));
            }
        }
        let held = HeldFiles { name, save: "x".into(), ranks: 10, saved: vec![0, 2, 3, 4] };
        assert_eq!(held.to_string(), "step-000120.1 10 0,2-4 x");
        for line in
            ["", "step-1 4", "step-1 4 0-4 x", "step-1 4 a x", "step-1 4 0-99999999999999 x", "x 4 0 x"]
        {
            assert!(line.parse::<HeldFiles>().is_err(), "{line}");
        }
    }
}
