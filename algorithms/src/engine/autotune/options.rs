//! Options of autotune, and the settings that it changes.

use hexagram_logical::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Candidates for autotune, and the length of the trials. All ranks must use the same.
#[derive(Debug, Clone)]
pub struct Autotune {
    /// Number of steps before the first trial. Default: 20.
    pub warm_up: u64,
    /// Number of steps of a trial that are measured, after one that is not. Default: 10.
    pub steps: u64,
    /// Candidates for the maximum size of a bucket, in bytes. Of those that give the same buckets, one is tried.
    /// Default: 1 MiB to 64 MiB, by powers of 2.
    pub bucket_bytes: Vec<usize>,
    /// Numbers of streams to try. Default: 1, 2 and 4.
    pub streams: Vec<usize>,
    /// Cost of a step, instead of its measured time, for tests and for models of a network. Default: none.
    pub cost: Option<Cost>,
}

impl Autotune {
    pub(crate) fn check(&self) -> Result<()> {
        if self.bucket_bytes.contains(&0) || self.streams.contains(&0) || self.steps == 0 {
            let what = "autotune was to try buckets of 0 bytes, 0 streams, or 0 steps";
            return Err(Error::usage(what, "try 1 or more of each"));
        }
        Ok(())
    }
}

impl Default for Autotune {
    fn default() -> Self {
        let bucket_bytes = (0..7).map(|power| 1 << (20 + power)).collect();
        Autotune { warm_up: 20, steps: 10, bucket_bytes, streams: vec![1, 2, 4], cost: None }
    }
}

/// Function that returns the cost of a step with given settings.
#[derive(Clone)]
pub struct Cost(pub Arc<dyn Fn(Tuning) -> Duration + Send + Sync>);

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The same text on all ranks, which compare it.
        f.write_str("Cost")
    }
}

/// Settings that can change between two steps; each has the meaning of its field in
/// [`EngineOptions`](crate::EngineOptions).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Maximum size of a bucket, in bytes.
    pub bucket_bytes: usize,
    /// Maximum number of buckets that are communicated at the same time.
    pub streams: usize,
    /// True to communicate within each host first.
    pub hierarchical: bool,
}
