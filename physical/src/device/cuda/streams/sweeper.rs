//! The sweeper: threads of each device that look at work in flight, also without a waiting thread.
//!
//! The first thread drops the values that finished work kept, rings bells that the driver does not ring, and is the first to
//! see that a device is lost. It calls the driver, which may block it while another thread's call waits for the device. That
//! call may wait for a stream that waits for a dead rank. So a second thread ends the waits of
//! [watched](crate::device::cuda::FailureWatch) work: it neither calls the driver nor drops values that may call it. Without
//! work in flight both sleep. They end before the process does.

use super::failure_watch::WatchedWork;
use super::poll_loop::PollLoop;
use crate::error::{Error, Result};
use crate::waiting::lock::lock;
use std::cell::Cell;
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::Duration;

/// Longest time that the end of the process waits for a thread, which the drop of a value may block.
const LAST: Duration = Duration::from_secs(1);

/// Sweepers that must end before the driver does, since its behaviour on their threads is then undefined.
static RUNNING: Mutex<Vec<Weak<Sweeper>>> = Mutex::new(Vec::new());

thread_local! {
    /// True on the threads of a sweeper.
    static SWEEPS: Cell<bool> = const { Cell::new(false) };
}

/// Ends all sweepers when the process does.
extern "C" fn end_all() {
    let running: Vec<_> = lock(&RUNNING).drain(..).collect();
    for sweeper in running.iter().filter_map(Weak::upgrade) {
        sweeper.end();
        if !SWEEPS.get() {
            sweeper.swept.wait_for_end(LAST);
            sweeper.watched.wait_for_end(LAST);
        }
    }
}

/// Stream with work in flight.
pub(crate) trait InFlight: Send + Sync {
    /// Drops the values of finished work, and rings the bells of events that have happened. Returns false if nothing
    /// is left, and the caller must take the stream off the sweeper's list.
    fn look(&self) -> bool;

    /// Waits until the work so far is done, or until `at_most` has passed.
    fn wait(self: Arc<Self>, at_most: Duration);
}

/// Work in flight of one kind or the other.
#[derive(Clone)]
enum SweptWork {
    Stream(Arc<dyn InFlight>),
    Watched(Arc<WatchedWork>),
}

/// Work in flight, and the threads that look at it.
#[derive(Default)]
pub(crate) struct Sweeper {
    /// All work in flight, for the thread that calls the driver and drops values.
    swept: PollLoop<SweptWork>,
    /// Watched work, for the thread that does neither.
    watched: PollLoop<Arc<WatchedWork>>,
}

impl Sweeper {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::System`] if a thread cannot be started.
    pub(crate) fn start() -> Result<Arc<Self>> {
        let sweeper = Arc::new(Sweeper::default());
        let run = |name: &str, run: fn(&Self)| {
            let own = Arc::clone(&sweeper);
            let thread = std::thread::Builder::new().name(name.to_owned());
            let spawned = thread.spawn(move || {
                SWEEPS.set(true);
                run(&own);
            });
            spawned.map(drop).map_err(Error::no_thread)
        };
        run("hexagram-cuda", |own| own.swept.run(|| own.sweep()))?;
        run("hexagram-watch", |own| own.watched.run(|| own.look_at_watched()))
            .inspect_err(|_| sweeper.end())?;
        Ok(sweeper)
    }

    /// Makes the end of the process wait until the threads have ended. Called after the driver has started, so that
    /// it runs before the driver's own exit handler: handlers run in reverse order.
    pub(crate) fn end_with_process(self: &Arc<Self>) {
        static ONCE: Once = Once::new();
        // If the system takes no further function, the process ends as it would have.
        // SAFETY: the function takes nothing, and stays.
        ONCE.call_once(|| _ = unsafe { libc::atexit(end_all) });
        let mut running = lock(&RUNNING);
        running.retain(|sweeper| sweeper.strong_count() > 0);
        running.push(Arc::downgrade(self));
    }

    /// Polls a stream until its work is done.
    pub(crate) fn add(&self, stream: Arc<dyn InFlight>) {
        self.swept.add(SweptWork::Stream(stream));
    }

    /// Looks at watched work until its watch ends.
    pub(crate) fn watch(&self, watched: WatchedWork) {
        let watched = Arc::new(watched);
        // This thread first, which drops it last.
        self.swept.add(SweptWork::Watched(Arc::clone(&watched)));
        self.watched.add(watched);
    }

    /// Looks soon.
    pub(crate) fn hurry(&self) {
        self.swept.hurry();
    }

    /// Ends the threads.
    pub(crate) fn end(&self) {
        self.swept.end();
        self.watched.end();
    }

    /// Returns true if no work is in flight. This remains true while no thread can enqueue.
    pub(crate) fn is_idle(&self) -> bool {
        self.swept.is_empty()
    }

    /// Looks once at all watched work. The other thread still owns the values that this drops.
    fn look_at_watched(&self) {
        let mut over = self.watched.all();
        over.retain(|watched| !watched.look());
        self.watched.take_off(|watched| over.iter().any(|over| Arc::ptr_eq(over, watched)));
    }

    /// Looks once at everything, and drops finished work.
    fn sweep(&self) {
        let swept = self.swept.all();
        let mut done = Vec::new();
        // First the ones that may end a stream's wait.
        for swept in &swept {
            if let SweptWork::Watched(watched) = swept {
                watched.ask();
            }
        }
        for swept in &swept {
            if let SweptWork::Stream(stream) = swept
                && !stream.look()
            {
                done.push(Arc::clone(stream));
            }
        }
        drop(swept);
        self.swept.take_off(|swept| match swept {
            // One entry only: a second one exists if the stream has been added again since.
            SweptWork::Stream(stream) => {
                let place = done.iter().position(|done| Arc::ptr_eq(done, stream));
                place.map(|place| drop(done.swap_remove(place))).is_some()
            }
            // The other thread has dropped it, and no third owner is possible.
            SweptWork::Watched(watched) => Arc::strong_count(watched) == 1,
        });
    }
}
