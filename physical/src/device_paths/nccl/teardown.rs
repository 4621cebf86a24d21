//! Teardown: threads on which NCCL ends communicators, each for one.
//!
//! An abort waits until the device has reached the NCCL work, and a communicator is not destroyed before the other ranks of its
//! host have closed their connections to it. So an endpoint, and the end of the process, wait only for a limited time: such a
//! thread may be inside the driver.

#![allow(clippy::disallowed_methods, reason = "the process ends, and no world is left")]

use super::link::TICK;
use crate::device::Queue;
use crate::device::cuda::CudaQueue;
use crate::error::Result;
use crate::runtime::{self, Thread};
use crate::waiting::lock::lock;
use crate::waiting::stopwatch::Stopwatch;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// Longest time that an endpoint waits for the other ranks when it closes, and the end of the process for NCCL.
pub(super) const FAREWELL: Duration = Duration::from_secs(5);

/// Teardowns that may be running; `None` once the process ends, after which none may begin.
static RUNNING: Mutex<Option<Vec<Arc<Teardown>>>> = Mutex::new(Some(Vec::new()));

/// End of a communicator by NCCL: the thread, until it has ended.
pub(super) struct Teardown(Mutex<Option<Thread>>);

/// Waits for all of them when the process ends.
extern "C" fn wait_for_all() {
    let begun = Instant::now();
    let running = lock(&RUNNING).take().unwrap_or_default();
    while !running.iter().all(|ending| ending.is_over()) && begun.elapsed() < FAREWELL {
        std::thread::sleep(TICK);
    }
}

impl Teardown {
    /// Starts `end` on a thread of its own, with the context of the queue's GPU: without one, NCCL would make one on the first
    /// GPU, whichever the communicator's is. If the GPU no longer has a context, or the process ends, nothing is left to do.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if there can be no further thread.
    pub(super) fn begin(queue: &Queue, end: impl FnOnce() + Send + 'static) -> Result<Arc<Self>> {
        static ONCE: Once = Once::new();
        // If the system takes no further function, the process ends as it would have.
        // SAFETY: the function takes nothing, and stays.
        ONCE.call_once(|| _ = unsafe { libc::atexit(wait_for_all) });
        let mut running = lock(&RUNNING);
        let Some(running) = &mut *running else { return Ok(Arc::new(Teardown(Mutex::default()))) };
        let queue = queue.clone();
        let thread = runtime::spawn("hexagram-nccl", move || {
            if let Some(Ok(_current)) = CudaQueue::of(&queue).map(|queue| queue.gpu().enter()) {
                end();
            }
        })?;
        let ending = Arc::new(Teardown(Mutex::new(Some(thread))));
        running.retain(|ending| !ending.is_over());
        running.push(Arc::clone(&ending));
        Ok(ending)
    }

    /// Returns true once NCCL is done, and the thread has ended.
    fn is_over(&self) -> bool {
        let mut thread = lock(&self.0);
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return false;
        }
        // It does not panic, and its result is no longer needed.
        drop(thread.take().map(Thread::join));
        true
    }

    /// Waits until NCCL is done, or until `limit` has passed.
    pub(super) fn wait(&self, limit: Duration) {
        let mut waited = Stopwatch::start();
        while !self.is_over() && waited.elapsed() <= limit {
            runtime::sleep(TICK);
        }
    }
}
