//! The sweeper: a thread of each device that looks at streams nobody may be waiting for. Open this to see how often.
//!
//! It drops what their work has held once that is done, rings bells that the driver does not ring, and is the first to
//! see that a device is lost. Work that may fail late it lets be [looked at](super::Watch). While nothing is in flight it
//! sleeps. It ends before the process does.

use super::gpu::lock;
use super::stream::CudaStream;
use super::watch::Watched;
use crate::device::Event;
use crate::error::{Error, Result};
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time between the first two looks; it doubles as long as there is nothing new.
const FIRST: Duration = Duration::from_millis(1);

/// Longest time between two looks.
const LONGEST: Duration = Duration::from_millis(64);

/// Longest that the end of the process waits for a sweeper, which may be held up by what it lets go of.
const LAST: Duration = Duration::from_secs(1);

/// Sweepers that have to end before the driver does, as nobody knows what it does on their threads then.
static RUNNING: Mutex<Vec<Weak<Sweeper>>> = Mutex::new(Vec::new());

thread_local! {
    /// True on the thread of a sweeper.
    static SWEEPS: Cell<bool> = const { Cell::new(false) };
}

/// Ends all sweepers when the process does.
extern "C" fn end_all() {
    let running: Vec<_> = lock(&RUNNING).drain(..).collect();
    for sweeper in running.iter().filter_map(Weak::upgrade) {
        sweeper.end();
        if !SWEEPS.get() {
            sweeper.wait_for_end();
        }
    }
}

/// Streams with work in flight, and the thread that looks at them.
#[derive(Default)]
pub(super) struct Sweeper {
    list: Mutex<List>,
    news: Condvar,
    end: Condvar,
}

struct List {
    streams: Vec<Arc<CudaStream>>,
    watched: Vec<Arc<Watched>>,
    /// Time until the next look.
    pause: Duration,
    /// True if there was work since the last look.
    is_new: bool,
    is_over: bool,
    /// True once the thread looks no more.
    has_ended: bool,
}

impl Default for List {
    fn default() -> Self {
        List {
            streams: Vec::new(),
            watched: Vec::new(),
            pause: FIRST,
            is_new: false,
            is_over: false,
            has_ended: false,
        }
    }
}

impl Sweeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::System`] if there can be no further thread.
    pub(super) fn start() -> Result<Arc<Self>> {
        let sweeper = Arc::new(Sweeper::default());
        let own = Arc::clone(&sweeper);
        let thread = std::thread::Builder::new().name("hexagram-cuda".to_owned());
        thread.spawn(move || own.run()).map_err(Error::no_thread)?;
        Ok(sweeper)
    }

    /// Lets the end of the process wait until the thread has ended. Called when the driver has begun, so that it comes
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
    pub(super) fn add(&self, stream: Arc<CudaStream>) {
        let mut list = lock(&self.list);
        list.streams.push(stream);
        if list.streams.len() == 1 {
            self.news.notify_one();
        }
        self.look_soon(list);
    }

    /// Looks at watched work until it is over.
    pub(super) fn watch(&self, watched: Watched) {
        let mut list = lock(&self.list);
        list.watched.push(Arc::new(watched));
        self.news.notify_one();
        self.look_soon(list);
    }

    /// Looks soon.
    pub(super) fn hurry(&self) {
        self.look_soon(lock(&self.list));
    }

    fn look_soon(&self, mut list: MutexGuard<'_, List>) {
        list.is_new = true;
        if list.pause > FIRST {
            list.pause = FIRST;
            self.news.notify_one();
        }
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        lock(&self.list).is_over = true;
        self.news.notify_one();
    }

    fn wait_for_end(&self) {
        let list = lock(&self.list);
        drop(self.end.wait_timeout_while(list, LAST, |list| !list.has_ended));
    }

    /// Waits until the work in flight is done, or until `at_most` has passed.
    pub(super) fn wait(&self, at_most: Duration) {
        let begun = Instant::now();
        // They are waited for, and dropped, while the list is free.
        let streams = lock(&self.list).streams.clone();
        for stream in &streams {
            stream.record().wait(at_most.saturating_sub(begun.elapsed()));
        }
    }

    /// Looks once at all watched work.
    fn look_at_watched(&self) {
        // It is looked at, and dropped, while the list is free.
        let watched = lock(&self.list).watched.clone();
        let over: Vec<_> = watched.into_iter().filter(|watched| !watched.look()).collect();
        let is_over = |watched: &mut Arc<Watched>| over.iter().any(|over| Arc::ptr_eq(over, watched));
        let gone: Vec<_> = lock(&self.list).watched.extract_if(.., is_over).collect();
        drop((over, gone));
    }

    /// Looks once at every stream.
    fn look_at_streams(&self) {
        // They are looked at, and dropped, while the list is free.
        let streams = lock(&self.list).streams.clone();
        let done: Vec<_> = streams.into_iter().filter(|stream| !stream.look()).collect();
        let mut list = lock(&self.list);
        let places = done.iter().filter_map(|done| {
            // One entry only: there is a second one if the stream has been added again meanwhile.
            let place = list.streams.iter().position(|stream| Arc::ptr_eq(stream, done))?;
            Some(list.streams.swap_remove(place))
        });
        let gone: Vec<_> = places.collect();
        drop(list);
        drop((done, gone));
    }

    fn run(&self) {
        SWEEPS.set(true);
        let mut list = lock(&self.list);
        while !list.is_over {
            if list.streams.is_empty() && list.watched.is_empty() {
                list = self.news.wait(list).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let pause = list.pause;
            let (guard, timeout) =
                self.news.wait_timeout(list, pause).unwrap_or_else(PoisonError::into_inner);
            list = guard;
            if timeout.timed_out() {
                list.pause = if std::mem::take(&mut list.is_new) { FIRST } else { LONGEST.min(2 * pause) };
                drop(list);
                // Those first that may let a stream go on.
                self.look_at_watched();
                self.look_at_streams();
                list = lock(&self.list);
            }
        }
        list.has_ended = true;
        self.end.notify_all();
    }
}
