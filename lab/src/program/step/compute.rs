//! Computation of a given length: CPU time that is really spent, so that communication beside it has what is left.

use hexagram::{Error, Result};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the CPU time that this thread has spent.
fn spent() -> Result<Duration> {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).map_err(|_| Error::usage("the CPU clock ran backwards", "report this"))
}

/// Computes until this thread has spent so much more CPU time.
pub(super) fn burn(time: Duration) -> Result<()> {
    let until = spent()?.checked_add(time).ok_or_else(|| {
        Error::usage(
            format!("a computation of {time:?} has no end"),
            "give the layer fewer seconds in the profile",
        )
    })?;
    let mut x = 1.0f64;
    while spent()? < until {
        for _ in 0..256 {
            x = x.mul_add(1.000_000_1, 1e-9);
        }
        std::hint::black_box(x);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spends_at_least_what_was_asked_for() {
        let before = spent().unwrap();
        burn(Duration::from_millis(5)).unwrap();
        assert!(spent().unwrap() - before >= Duration::from_millis(5));
    }

    #[test]
    fn a_time_that_has_no_end_is_refused() {
        let text = burn(Duration::MAX).unwrap_err().to_string();
        assert!(text.contains("has no end; give the layer fewer seconds"), "{text}");
    }
}
