//! A runtime in virtual time, whose threads take turns. Use it to test code that waits for seconds, in milliseconds
//! and with the same outcome every time.

use super::{Instant, Park, Runtime, Task, within};
use crate::bootstrap::sockets::local;
use rustix::event::{PollFd, Timespec};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Builder, Thread};
use std::time::Duration;
use std::{fmt, io, mem};

/// Virtual time between two polls of descriptors or of a transport.
const LOOK: Duration = Duration::from_millis(1);

/// A runtime whose clock moves only when all of its threads wait, and then immediately. One thread runs at a time, in
/// an order that follows from their waits, so that all runs are equal.
///
/// Tasks share one thread, which polls each of them once a millisecond: a separate turn for every task would take
/// longer than their work.
///
/// Its sockets are those of the system. A thread that waits for a different thread without [`runtime`](super) keeps its turn,
/// and both wait forever.
///
/// ```
/// use hexagram_physical::runtime::{self, VirtualTime};
/// use std::time::Duration;
///
/// let slept = VirtualTime::run(|| {
///     let start = runtime::now();
///     runtime::sleep(Duration::from_secs(3600));
///     start.elapsed()
/// });
/// assert_eq!(slept, Duration::from_secs(3600));
/// ```
#[derive(Debug, Clone, Default)]
pub struct VirtualTime(Arc<Turns>);

#[derive(Default)]
struct Turns(Mutex<ThreadSchedule>);

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("now", &self.lock().now).finish_non_exhaustive()
    }
}

/// Number of a thread, in the order of their starts.
type ThreadIndex = u64;

#[derive(Default)]
struct ThreadSchedule {
    /// Time since the start.
    now: Duration,
    /// The thread whose turn it is.
    running: ThreadIndex,
    started: ThreadIndex,
    /// Number of waits so far: of threads that may continue at the same time, the one that has waited longest goes
    /// first.
    waits: u64,
    waiting: BTreeMap<(Duration, u64), ThreadIndex>,
    /// Threads that have not ended.
    threads: BTreeMap<ThreadIndex, Thread>,
    /// Tasks that their thread has not created yet; `None` while there is no such thread.
    tasks: Option<Vec<Task>>,
}

thread_local! {
    static MINE: Cell<ThreadIndex> = const { Cell::new(0) };
    /// Tasks of this thread; `None` in place of one that is being polled. Other threads have none.
    static DRIVEN: RefCell<Vec<Option<Driven>>> = const { RefCell::new(Vec::new()) };
}

/// Running task.
type Driven = Pin<Box<dyn Future<Output = ()>>>;

impl ThreadSchedule {
    fn wait(&mut self, thread: ThreadIndex, duration: Duration) {
        self.waits += 1;
        self.waiting.insert((self.now.saturating_add(duration), self.waits), thread);
    }

    fn pass_on(&mut self) {
        if let Some(((time, _), thread)) = self.waiting.pop_first() {
            self.now = time;
            self.running = thread;
            self.threads.get(&thread).inspect(|thread| thread.unpark());
        }
    }
}

impl VirtualTime {
    /// Runs `work` from time zero, and returns its result.
    pub fn run<R>(work: impl FnOnce() -> R) -> R {
        MINE.set(0);
        let time = VirtualTime::default();
        time.0.lock().threads.insert(0, thread::current());
        within(Arc::new(time), work)
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, ThreadSchedule> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn await_turn(&self) {
        while self.lock().running != MINE.get() {
            thread::park();
        }
    }

    fn sleep(&self, duration: Duration) {
        let mut schedule = self.lock();
        schedule.wait(MINE.get(), duration);
        schedule.pass_on();
        drop(schedule);
        self.await_turn();
    }

    /// Drives tasks until all have ended.
    fn drive_tasks(&self) {
        while self.look_at_tasks() {
            DRIVEN.with_borrow_mut(|driven| driven.retain(Option::is_some));
            self.sleep(LOOK);
        }
    }

    /// Polls each task once, except those that are being polled already; returns false if none are left, and the
    /// thread of the tasks must end.
    fn look_at_tasks(&self) -> bool {
        let Some(new) = self.new_tasks(DRIVEN.with_borrow(Vec::is_empty)) else { return false };
        let made: Vec<_> = new.into_iter().map(|task| Some(task())).collect();
        DRIVEN.with_borrow_mut(|driven| driven.extend(made));
        for at in 0..DRIVEN.with_borrow(Vec::len) {
            let taken = DRIVEN.with_borrow_mut(|driven| driven[at].take());
            let pending = taken.and_then(|mut task| {
                let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                polled.is_pending().then_some(task)
            });
            DRIVEN.with_borrow_mut(|driven| driven[at] = pending.or(driven[at].take()));
        }
        true
    }

    /// Waits on the thread of the tasks, in the middle of one of them: the others continue, since it may wait for
    /// one.
    fn sleep_within_task(&self, duration: Duration) {
        let end = self.lock().now.saturating_add(duration);
        loop {
            self.look_at_tasks();
            let left = end.saturating_sub(self.lock().now);
            self.sleep(LOOK.min(left));
            if left <= LOOK {
                return;
            }
        }
    }

    /// Takes the new tasks; `None` if there is no work and the thread of the tasks must end.
    fn new_tasks(&self, idle: bool) -> Option<Vec<Task>> {
        let mut schedule = self.lock();
        let new = schedule.tasks.as_mut().map(mem::take).filter(|new| !(idle && new.is_empty()));
        if new.is_none() {
            schedule.tasks = None;
        }
        new
    }
}

impl Runtime for VirtualTime {
    fn now(&self) -> Instant {
        Instant::after_origin(self.0.lock().now)
    }

    fn unix_time(&self) -> Duration {
        self.0.lock().now
    }

    fn sleep(&self, duration: Duration) {
        match DRIVEN.with_borrow(Vec::is_empty) {
            true => self.0.sleep(duration),
            false => self.0.sleep_within_task(duration),
        }
    }

    fn park(&self, _: &dyn Park, at_most: Duration) {
        self.sleep(LOOK.min(at_most));
    }

    fn poll(&self, sources: &mut [PollFd<'_>], at_most: Option<Duration>) -> io::Result<usize> {
        let start = self.0.lock().now;
        loop {
            let ready = rustix::event::poll(sources, Some(&Timespec::default()))?;
            let passed = self.0.lock().now - start;
            let left = at_most.map_or(LOOK, |at_most| at_most.saturating_sub(passed));
            if ready > 0 || left.is_zero() {
                return Ok(ready);
            }
            self.0.sleep(LOOK.min(left));
        }
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let turns = Arc::clone(&self.0);
        let mut schedule = self.0.lock();
        let number = schedule.started + 1;
        let run = move || {
            MINE.set(number);
            turns.await_turn();
            work();
            let mut schedule = turns.lock();
            schedule.threads.remove(&number);
            schedule.pass_on();
        };
        let thread = Builder::new().name(name.to_owned()).spawn(run)?;
        schedule.threads.insert(number, thread.thread().clone());
        schedule.started = number;
        schedule.wait(number, Duration::ZERO);
        Ok(())
    }

    fn spawn_task(&self, _: &str, task: Task) -> io::Result<()> {
        let waits_for_thread = {
            let mut schedule = self.0.lock();
            let missing = schedule.tasks.is_none();
            schedule.tasks.get_or_insert_default().push(task);
            missing
        };
        if waits_for_thread {
            let turns = Arc::clone(&self.0);
            self.spawn("hexagram-tasks", Box::new(move || turns.drive_tasks()))?;
        }
        Ok(())
    }

    fn poll_park(&self, _: &dyn Park, _: Duration, _: &mut Context<'_>) -> Poll<()> {
        // The next poll is automatic.
        Poll::Pending
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((host, port).to_socket_addrs()?.collect())
    }

    fn connect(&self, address: &SocketAddr, patience: Duration) -> io::Result<TcpStream> {
        TcpStream::connect_timeout(address, patience)
    }

    fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(address)
    }

    fn connect_local(&self, name: &str, patience: Duration) -> io::Result<UnixStream> {
        local::connect(name, patience)
    }

    fn listen_local(&self, name: &str) -> io::Result<UnixListener> {
        UnixListener::bind_addr(&local::abstract_address(name)?)
    }
}
