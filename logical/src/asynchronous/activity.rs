//! Times at which the threads beside a communicator were at work, for whoever draws or sums up where the time went:
//! their work is in no operation of the communicator's own thread.

use crate::runtime::{self, Instant};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Work that is kept at most (40 MiB); what comes later is only counted.
const LIMIT: usize = 1 << 20;

/// Record of the work of the [`Background`](super::Background)s and [`Service`](super::Service)s that were started on a
/// communicator. Nothing is kept before it is asked for. [`Communicator::activity`](crate::Communicator::activity) has
/// it.
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
pub struct Activity(Mutex<Option<Record>>);

#[derive(Debug, Default)]
struct Record {
    work: Vec<Work>,
    dropped: u64,
}

/// Work that one thread did without a pause: of a `Background`, one operation, with the wait for the ranks that come to
/// it later; of a `Service`, one or more requests of this rank or of others, without those that nothing can be done
/// about yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Time at which it began.
    pub start: Instant,
    /// Time at which it ended.
    pub end: Instant,
    /// Bytes that this rank had sent by then, on all channels, headers included.
    pub sent: u64,
}

impl Activity {
    /// Keeps what ends from here on; what was kept before is gone.
    pub fn record(&self) {
        *self.lock() = Some(Record::default());
    }

    /// Ends the recording: what was kept, in the order in which it ended, and how much there was beyond the 2²⁰ that
    /// are kept. What is under way is in neither.
    pub fn take(&self) -> (Vec<Work>, u64) {
        self.lock().take().map_or((Vec::new(), 0), |Record { work, dropped }| (work, dropped))
    }

    pub(super) fn ends(&self, start: Instant, sent: u64) {
        if let Some(Record { work, dropped }) = &mut *self.lock() {
            let end = runtime::now();
            if work.len() < LIMIT { work.push(Work { start, end, sent }) } else { *dropped += 1 }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
