//! Work times of the additional threads of a communicator, for timelines and time totals. No operation of the
//! communicator thread contains this work.

use crate::runtime::{self, Instant};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of kept entries (40 MiB); later ones are only counted.
const LIMIT: usize = 1 << 20;

/// Work times of the [`Background`](super::Background)s and [`Service`](super::Service)s that were started on a
/// communicator, from [`Communicator::activity`](crate::Communicator::activity). Records only between
/// [`Activity::record`] and [`Activity::take`].
///
/// ```
/// use hexagram_logical::asynchronous::Background;
/// use hexagram_logical::testing::spawn;
/// use hexagram_logical::TransportKind;
///
/// let ranks = spawn(TransportKind::Thread, 2, |comm| {
///     let background = comm.block_on(Background::start(&comm))?;
///     comm.activity().record();
///     background.call(async |_| Ok(())).blocking()?;
///     let (work, _) = comm.activity().take();
///     Ok(work.len())
/// });
/// assert_eq!(ranks.unwrap(), [1, 1]);
/// ```
#[derive(Debug, Default)]
pub struct Activity(Mutex<Option<ActivityLog>>);

#[derive(Debug, Default)]
struct ActivityLog {
    work: Vec<Work>,
    dropped: u64,
}

/// Work of one thread without a pause. Of a `Background`, it is one operation, including the wait for late ranks. Of
/// a `Service`, it is one or more requests of this or other ranks, without postponed requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Start of the work.
    pub start: Instant,
    /// End of the work.
    pub end: Instant,
    /// Bytes that this rank had sent by the end, on all channels, including headers.
    pub sent: u64,
}

impl Activity {
    /// Starts a new recording, and discards the previous one.
    pub fn record(&self) {
        *self.lock() = Some(ActivityLog::default());
    }

    /// Ends the recording. Returns the work in the order of completion, and the number of entries beyond the maximum
    /// of 2²⁰. Unfinished work is in neither.
    pub fn take(&self) -> (Vec<Work>, u64) {
        self.lock().take().map_or((Vec::new(), 0), |ActivityLog { work, dropped }| (work, dropped))
    }

    pub(super) fn ends(&self, start: Instant, sent: u64) {
        if let Some(ActivityLog { work, dropped }) = &mut *self.lock() {
            let end = runtime::now();
            if work.len() < LIMIT { work.push(Work { start, end, sent }) } else { *dropped += 1 }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<ActivityLog>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
