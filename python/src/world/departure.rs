//! The end of a world of which this process is no longer a member: its open objects, its executors, and the world itself.

use super::leaving::Leaving;
use hexagram::Result;
use hexagram::logical::executor::Executor;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time for which leaving a world waits for operations without a waiting caller.
const LINGER: Duration = Duration::from_secs(5);

/// Object of a world with its own thread, which ends before the world is left. All ranks end it.
pub(crate) trait Closes: Send + Sync {
    /// Ends it, or fails after the deadline of the world without progress. A second call has no effect. Never called
    /// with the interpreter lock held.
    fn close(&self) -> Result<()>;
}

/// A world that this process is leaving. Dropped in this order.
pub(super) struct Departure {
    pub(super) open: Vec<Arc<dyn Closes>>,
    pub(super) executor: Executor,
    pub(super) gpu_executor: Option<Executor>,
    pub(super) world: hexagram::World,
    pub(super) gave_up: bool,
    pub(super) leaving: Leaving,
}

impl Departure {
    /// Closes all objects, and ends the operations in progress.
    pub(super) fn end(&mut self) -> Result<()> {
        let closed = close_all(&std::mem::take(&mut self.open));
        let gpus_ended = self.gpu_executor.as_ref().map_or(Ok(()), |executor| executor.shutdown(LINGER));
        let ended = self.executor.shutdown(LINGER).and(gpus_ended);
        self.leaving.closed(self.world.deadline());
        // A rank that has failed has already reported why.
        if self.gave_up { ended } else { closed.and(ended) }
    }
}

/// Closes everything; returns the first error.
pub(super) fn close_all(open: &[Arc<dyn Closes>]) -> Result<()> {
    let ended: Vec<Result<()>> = open.iter().map(|closes| closes.close()).collect();
    ended.into_iter().collect()
}
