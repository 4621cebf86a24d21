//! Traces of the time of every rank: its computation and communication, on one clock.
//!
//! [`DataParallel::trace`](crate::DataParallel::trace) starts the recording, for any algorithm;
//! [`collect`](crate::engine::Tracing::collect) gathers the records of all ranks at rank 0 as a [`Trace`], which can be
//! saved as a file for ui.perfetto.dev and summarized as a [`Report`].
//!
//! A trace contains the spans of the training thread (loading, forward, backward, waiting, optimizer), of each hook,
//! and of the operations of a [`Background`](hexagram_logical::asynchronous::Background) or
//! [`Service`](hexagram_logical::asynchronous::Service) of an algorithm, each from its beginning to its end. Hooks and
//! these operations count as communication, including their arithmetic and their waits for other ranks. Operations in
//! progress when the trace is collected are not included.
//!
//! A thread that uses a device only enqueues work, which the device executes much later. So the times of the device are
//! recorded for hooks, for steps of the engine optimizer, and for the passes of the framework, if an adapter supports
//! it ([`stamp_passes`](crate::engine::Tracing::stamp_passes)). These are separate spans, which the [`Report`] uses.

mod clock;
mod collect;
mod device;
mod file;
mod intervals;
mod record;
mod report;

pub(crate) use clock::{Offset, TraceClock, align};
pub(crate) use collect::{RankRecords, gather};
pub(crate) use device::Stamp;
pub use file::check_writable;
pub use record::{Kind, Place, Span};
pub(crate) use record::{Recorder, Stamps, Timeline};
pub use report::{RankReport, Report, Shares, Slowest, StepReport};

use std::sync::Arc;
use std::time::Duration;

/// Records of all ranks, on the clock of rank 0.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Name of the algorithm when the trace was collected.
    pub algorithm: String,
    /// Parameters of each bucket when the trace was collected: the first and the last in model order.
    pub buckets: Vec<String>,
    /// Records of each rank.
    pub ranks: Vec<RankTrace>,
}

/// Records of one rank.
#[derive(Debug, Clone)]
pub struct RankTrace {
    /// Name of the host of the rank.
    pub host: Arc<str>,
    /// Process id of the rank on that host.
    pub pid: u32,
    /// Spans of the rank: first those of its training thread, in sequence; then its hooks, in the order in which they ended;
    /// then its background work; then those of its device: work of the training thread first, then work of the communication
    /// thread. Times are in nanoseconds since the start of the recording on rank 0.
    pub spans: Vec<Span>,
    /// Number of spans beyond the limit, or without known device times.
    pub dropped: u64,
    /// Maximum error of the times, relative to those of rank 0.
    pub clock_error: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn trace(ranks: Vec<RankTrace>) -> Trace {
        Trace { algorithm: "local-sgd".to_owned(), buckets: vec!["fc.weight to fc.bias".to_owned()], ranks }
    }

    /// A rank with spans of kind, step, start and end; hooks are of bucket 3.
    pub(super) fn rank(host: &str, spans: &[(Kind, u64, i64, i64)]) -> RankTrace {
        let span = |(kind, step, start, end): &(Kind, u64, i64, i64)| {
            let kind = *kind;
            let step = *step;
            let start = *start;
            let end = *end;
            let (bucket, bytes, sent) = if kind.is_communication() { (3, 4096, 99) } else { (0, 0, 0) };
            Span { kind, place: Place::Host, step, bucket, bytes, start, end, sent }
        };
        let spans = spans.iter().map(span).collect();
        let clock_error = Duration::from_nanos(1500);
        RankTrace { host: host.into(), pid: 7, spans, dropped: 0, clock_error }
    }
}
