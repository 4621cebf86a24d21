//! Set of ranks of a job, as users write it: `0,2-3`.

use hexagram_physical::{Error, Result};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Set of ranks: single ones and ranges, separated by commas.
///
/// ```
/// use hexagram_launch::Ranks;
///
/// let ranks: Ranks = "0,2-3".parse()?;
/// assert_eq!([0, 1, 2, 3, 4].map(|rank| ranks.contains(rank)), [true, false, true, true, false]);
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks(Vec<RangeInclusive<usize>>);

impl Ranks {
    /// Returns true if `rank` belongs to the set.
    pub fn contains(&self, rank: usize) -> bool {
        self.0.iter().any(|range| range.contains(&rank))
    }

    /// Returns the highest rank of the set.
    pub fn highest(&self) -> usize {
        self.0.iter().map(|range| *range.end()).max().unwrap_or(0)
    }
}

impl FromStr for Ranks {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first = first.trim().parse().ok()?;
            let last = last.trim().parse().ok()?;
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        ranges.map(Ranks).ok_or_else(|| {
            Error::usage(format!("`{text}` names no ranks"), "write ranks and ranges of ranks, as in 0,2-3")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_ranges() {
        for (text, ranks) in
            [("0", vec![0]), ("0,2-3", vec![0, 2, 3]), ("5-5, 1", vec![1, 5]), ("0-9,3-4", (0..10).collect())]
        {
            let parsed: Ranks = text.parse().unwrap();
            assert_eq!((0..20).filter(|rank| parsed.contains(*rank)).collect::<Vec<_>>(), ranks, "{text}");
            assert_eq!(Some(&parsed.highest()), ranks.iter().max());
        }
        for text in ["", ",", "a", "3-2", "-1", "1-", "0,,1", "1-2-3", "99999999999999999999"] {
            assert!(text.parse::<Ranks>().is_err(), "{text}");
        }
    }
}
