//! The time for which an operation, or the work of a device, may make no progress, unless the program sets it.

use crate::error::{Error, Result};
use crate::system::environment::variable;
use std::ops::RangeInclusive;
use std::time::Duration;

const DEADLINE: &str = "HEXAGRAM_DEADLINE";
const DEADLINES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);

/// Returns the initial deadline of operations: that of `HEXAGRAM_DEADLINE`, or 300 s. An invalid value counts as
/// unset; joining ranks refuse it.
pub(crate) fn at_first() -> Duration {
    let told = variable(DEADLINE).and_then(|text| from_seconds(&text).ok());
    told.unwrap_or(Duration::from_secs(300))
}

/// Decodes the value of `HEXAGRAM_DEADLINE`.
pub(crate) fn from_seconds(text: &str) -> Result<Duration> {
    parse_seconds(text).filter(|deadline| DEADLINES.contains(deadline)).ok_or_else(|| {
        let low = DEADLINES.start().as_secs();
        let high = DEADLINES.end().as_secs();
        let what = format!("{DEADLINE}={text} is not a valid number of seconds");
        Error::setup(what, format!("set it to {low} to {high} seconds, or unset it"))
    })
}

/// Decodes a number of seconds: digits, and optionally a point.
pub(crate) fn parse_seconds(text: &str) -> Option<Duration> {
    let text = text.trim();
    if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_seconds() {
        for (text, millis) in [("1", 1000), (" 2.5 ", 2500), ("86400", 86_400_000)] {
            assert_eq!(from_seconds(text).unwrap(), Duration::from_millis(millis));
        }
        for text in ["0.9", "86401", "-3", "4s", "inf", "NaN", "1e3", "+5", ".", ""] {
            let error = from_seconds(text).unwrap_err().to_string();
            assert!(error.contains(&format!("={text} ")) && error.contains("1 to 86400 seconds"), "{error}");
        }
    }
}
