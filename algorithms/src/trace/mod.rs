//! Traces of the time of every rank: what each one computed and communicated, on one clock.
//!
//! [`DataParallel::trace`](crate::DataParallel::trace) switches recording on, for any algorithm;
//! [`collect`](crate::engine::Tracing::collect) gathers what all ranks have recorded at rank 0 as a [`Trace`],
//! which is saved as a file for ui.perfetto.dev and summed up as a [`Report`].
//!
//! Recorded are the training thread (loading, forward, backward, waiting, optimizer); each hook; and, from the beginning of each
//! to its end, what an algorithm leaves to a [`Background`](hexagram_logical::asynchronous::Background) or a
//! [`Service`](hexagram_logical::asynchronous::Service) beside its hooks. Both count as communication, with the
//! arithmetic that they do and the other ranks that they wait for; what is under way as the trace is collected does
//! not.
//!
//! A thread that works with a device enqueues, and is through long before the device is. So the device tells by itself
//! when it did a hook's work, a step of the engine's optimizer, and the framework's passes, if an adapter lets it
//! ([`stamp_passes`](crate::engine::Tracing::stamp_passes)): these are spans of their own, by which the [`Report`] goes.

mod clock;
mod collect;
mod device;
mod file;
mod intervals;
mod record;
mod report;

pub(crate) use clock::{Clock, Offset, align};
pub(crate) use collect::{Recorded, gather};
pub(crate) use device::Stamp;
pub use file::check_writable;
pub use record::{Kind, Place, Span};
pub(crate) use record::{Recorder, Stamps, Timeline};
pub use report::{RankReport, Report, Shares, Slowest, StepReport};

use std::sync::Arc;
use std::time::Duration;

/// Records of all ranks, on rank 0's clock.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Name of the algorithm in use as the trace was collected.
    pub algorithm: String,
    /// Parameters of each bucket, as the trace was collected: the first and the last by the model's order.
    pub buckets: Vec<String>,
    /// Records of each rank.
    pub ranks: Vec<RankTrace>,
}

/// Records of one rank.
#[derive(Debug, Clone)]
pub struct RankTrace {
    /// Name of the rank's host.
    pub host: Arc<str>,
    /// Process of the rank, there.
    pub pid: u32,
    /// Spans of the rank: first those of its training thread, one after another; then its hooks, in the order in which
    /// they ended; then what it did in the background; then those of its device, of both threads one after the other.
    /// Times are nanoseconds since rank 0 began to record.
    pub spans: Vec<Span>,
    /// Number of spans that were too many to keep, or whose times its device does not know.
    pub dropped: u64,
    /// Largest error of the times, against those of rank 0.
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
