//! Where the time of every rank went: what each one computed and communicated, on one clock. Open this to see why a step
//! takes as long as it does, and which rank the others wait for.
//!
//! [`DataParallel::trace`](crate::DataParallel::trace) switches recording on, for any algorithm;
//! [`DataParallel::collect`](crate::DataParallel::collect) gathers what all ranks have recorded at rank 0 as a [`Trace`].
//!
//! Recorded are the training thread (forward, backward, waiting, optimizer) and each hook, which is what counts as
//! communication: with the arithmetic that a hook does, and without what an algorithm leaves to a service of its own
//! between its hooks.

mod clock;
mod collect;
mod record;

pub(crate) use clock::{Clock, Offset, align};
pub(crate) use collect::{Recorded, gather};
pub use record::{Kind, Span};
pub(crate) use record::{Recorder, Timeline};

use std::sync::Arc;
use std::time::Duration;

/// What all ranks did, on rank 0's clock.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The algorithm in use as it was collected.
    pub algorithm: String,
    /// By rank.
    pub ranks: Vec<RankTrace>,
}

/// What one rank did.
#[derive(Debug, Clone)]
pub struct RankTrace {
    /// The name of its host.
    pub host: Arc<str>,
    /// Its process there.
    pub pid: u32,
    /// First what its training thread did, one span after another; then its hooks, in the order in which they ended.
    /// Times are nanoseconds since rank 0 began to record.
    pub spans: Vec<Span>,
    /// Spans that were too many to keep.
    pub dropped: u64,
    /// How far its times can be from those of rank 0.
    pub clock_error: Duration,
}
