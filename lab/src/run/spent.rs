//! Time and bytes of training steps, by use.

use std::time::Duration;

/// Time and bytes of some training steps on one rank, by use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Spent {
    /// Number of the steps.
    pub(super) count: usize,
    /// Time in which the training thread waited for communication.
    pub(super) blocked: Duration,
    /// Time of the steps, with the waiting.
    pub(super) steps: Duration,
    /// Bytes that this rank sent.
    pub(super) bytes: u64,
    /// Samples that this rank trained on.
    pub(super) samples: usize,
}

impl Spent {
    /// Returns the sum with that of other steps.
    pub(super) fn plus(self, other: Self) -> Self {
        Spent {
            count: self.count + other.count,
            blocked: self.blocked + other.blocked,
            steps: self.steps + other.steps,
            bytes: self.bytes + other.bytes,
            samples: self.samples + other.samples,
        }
    }

    /// Returns all numbers, in the order of the fields, with times in seconds.
    pub(super) fn numbers(self) -> [f64; 5] {
        let Spent { count, blocked, steps, bytes, samples } = self;
        [count as f64, blocked.as_secs_f64(), steps.as_secs_f64(), bytes as f64, samples as f64]
    }
}
