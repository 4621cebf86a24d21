//! The sweeper: threads of each device that look at work which nobody may be waiting for.
//!
//! One drops what work has held once that is done, rings bells that the driver does not ring, and is the first to see that
//! a device is lost. It calls the driver, which may hold it up for as long as another thread's call waits for the device.
//! That one may wait for a stream that waits for a rank which is gone. So there is another thread, which lets
//! [watched](super::Watch) work go on: it calls no driver, nor does it drop what may. While nothing is in flight both
//! sleep. They end before the process does.

use super::rounds::Rounds;
use super::watch::Watched;
use crate::error::{Error, Result};
use crate::lock::lock;
use std::cell::Cell;
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::Duration;

/// Longest that the end of the process waits for a thread, which may be held up by what it lets go of.
const LAST: Duration = Duration::from_secs(1);

/// Sweepers that have to end before the driver does, as nobody knows what it does on their threads then.
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
pub(super) trait InFlight: Send + Sync {
    /// Drops what is done, and rings the bells of what has happened. Returns false if nothing is left, so that the caller
    /// has to take the stream off the sweeper's list.
    fn look(&self) -> bool;

    /// Waits until the work so far is done, or until `at_most` has passed.
    fn wait(self: Arc<Self>, at_most: Duration);
}

/// Work in flight of one kind or the other.
#[derive(Clone)]
enum Swept {
    Stream(Arc<dyn InFlight>),
    Watched(Arc<Watched>),
}

/// Work in flight, and the threads that look at it.
#[derive(Default)]
pub(super) struct Sweeper {
    /// Everything, for the thread that calls the driver and drops.
    swept: Rounds<Swept>,
    /// Watched work, for the one that does not.
    watched: Rounds<Arc<Watched>>,
}

impl Sweeper {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::System`] if there can be no further thread.
    pub(super) fn start() -> Result<Arc<Self>> {
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

    /// Lets the end of the process wait until the threads have ended. Called when the driver has begun, so that it comes
    /// before the driver's own end: what begins last ends first.
    pub(super) fn end_with_process(self: &Arc<Self>) {
        static ONCE: Once = Once::new();
        // If the system takes no further function, the process ends as it would have.
        // SAFETY: the function takes nothing, and stays.
        ONCE.call_once(|| _ = unsafe { libc::atexit(end_all) });
        let mut running = lock(&RUNNING);
        running.retain(|sweeper| sweeper.strong_count() > 0);
        running.push(Arc::downgrade(self));
    }

    /// Looks at a stream until there is nothing on it.
    pub(super) fn add(&self, stream: Arc<dyn InFlight>) {
        self.swept.add(Swept::Stream(stream));
    }

    /// Looks at watched work until it is over.
    pub(super) fn watch(&self, watched: Watched) {
        let watched = Arc::new(watched);
        // This thread first, which drops it last.
        self.swept.add(Swept::Watched(Arc::clone(&watched)));
        self.watched.add(watched);
    }

    /// Looks soon.
    pub(super) fn hurry(&self) {
        self.swept.hurry();
    }

    /// Ends the threads.
    pub(super) fn end(&self) {
        self.swept.end();
        self.watched.end();
    }

    /// Returns true if no work is in flight. It stays so as long as nobody can enqueue any.
    pub(super) fn is_idle(&self) -> bool {
        self.swept.is_empty()
    }

    /// Looks once at all watched work. What it drops the other thread still has.
    fn look_at_watched(&self) {
        let mut over = self.watched.all();
        over.retain(|watched| !watched.look());
        self.watched.take_off(|watched| over.iter().any(|over| Arc::ptr_eq(over, watched)));
    }

    /// Looks once at everything, and drops what is over.
    fn sweep(&self) {
        let swept = self.swept.all();
        let mut done = Vec::new();
        // Those first that may let a stream go on.
        for swept in &swept {
            if let Swept::Watched(watched) = swept {
                watched.ask();
            }
        }
        for swept in &swept {
            if let Swept::Stream(stream) = swept
                && !stream.look()
            {
                done.push(Arc::clone(stream));
            }
        }
        drop(swept);
        self.swept.take_off(|swept| match swept {
            // One entry only: there is a second one if the stream has been added again meanwhile.
            Swept::Stream(stream) => {
                let place = done.iter().position(|done| Arc::ptr_eq(done, stream));
                place.map(|place| drop(done.swap_remove(place))).is_some()
            }
            // The other thread has let go of it, and nobody else can have it.
            Swept::Watched(watched) => Arc::strong_count(watched) == 1,
        });
    }
}
