//! Computation of a given length: CPU time that is really spent, so that concurrent communication gets the rest. Or a
//! wait, as for an accelerator, which leaves the whole processor free.

use hexagram::physical::runtime;
use hexagram::{Error, Result};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Processor of the passes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Processor {
    /// This thread.
    Host,
    /// Event that this thread waits for.
    Accelerator,
}

impl Processor {
    /// Computes for this long.
    pub(super) fn compute(self, time: Duration) -> Result<()> {
        match self {
            Processor::Host => burn(time)?,
            Processor::Accelerator => runtime::sleep(time),
        }
        Ok(())
    }
}

/// Returns the CPU time that this thread has spent.
pub(crate) fn spent() -> Result<Duration> {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).map_err(|_| Error::usage("the CPU clock ran backwards", "report this"))
}

/// Computes until this thread has spent this much more CPU time.
fn burn(time: Duration) -> Result<()> {
    let until = spent()?.checked_add(time).ok_or_else(|| {
        Error::usage(
            format!("a computation of {time:?} is too long"),
            "reduce the seconds of the layer in the profile",
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
    fn waiting_for_an_accelerator_takes_the_time_and_not_the_processor() {
        let before = spent().unwrap();
        let began = runtime::now();
        Processor::Accelerator.compute(Duration::from_millis(20)).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert!(spent().unwrap() - before < Duration::from_millis(20));
    }

    #[test]
    fn a_time_that_has_no_end_is_refused() {
        let text = burn(Duration::MAX).unwrap_err().to_string();
        assert!(text.contains("is too long; reduce the seconds of the layer"), "{text}");
    }
}
