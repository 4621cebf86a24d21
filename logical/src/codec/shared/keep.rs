//! The number of elements that a sparse codec keeps.

use crate::options_text::percents;
use std::fmt;

/// Number of elements that a sparse codec keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// Number of elements, or all if there are fewer.
    Count(usize),
    /// Fraction of the elements, above 0 and at most 1, rounded up to a whole number.
    Ratio(f64),
}

impl Keep {
    /// Returns true if the value is valid: more than no elements, and at most all.
    pub(crate) fn holds(self) -> bool {
        match self {
            Keep::Count(count) => count > 0,
            Keep::Ratio(ratio) => ratio > 0.0 && ratio <= 1.0,
        }
    }

    /// Returns the number of elements kept of `len`.
    pub(crate) fn of(self, len: usize) -> usize {
        match self {
            Keep::Count(count) => count.min(len),
            Keep::Ratio(ratio) => ((len as f64 * ratio).ceil() as usize).min(len),
        }
    }

    /// Returns δ of a codec that keeps this share of every `chunk`, or of the whole run, unscaled: the minimum over
    /// the chunks.
    pub(crate) fn contraction(self, chunk: Option<usize>) -> Option<f64> {
        match self {
            Keep::Count(count) => chunk.map(|chunk| (count as f64 / chunk.max(1) as f64).min(1.0)),
            Keep::Ratio(ratio) => Some(ratio),
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keep::Count(count) => write!(f, "{count}"),
            Keep::Ratio(ratio) => f.write_str(&percents(*ratio)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_kept_and_never_more_than_there_is() {
        for keep in [Keep::Count(0), Keep::Ratio(0.0), Keep::Ratio(1.5), Keep::Ratio(f64::NAN)] {
            assert!(!keep.holds(), "{keep}");
        }
        assert_eq!([0, 1, 99, 100, 101].map(|len| Keep::Ratio(0.01).of(len)), [0, 1, 1, 1, 2]);
        assert_eq!([0, 1, 3].map(|len| Keep::Count(2).of(len)), [0, 1, 2]);
        let d = 1usize << 40;
        assert_eq!((Keep::Ratio(0.25).of(d), Keep::Ratio(1.0).of(d)), (d / 4, d));
    }
}
