//! Clocks, sleeps, threads and sockets of everything above the backends. Use this module wherever you would name
//! [`std::time::Instant`], [`std::thread`] or [`std::net`], so that a simulated world can replace them.
//!
//! By default each function here is that of the standard library. A thread that runs [`within`] a [`Runtime`] uses
//! the functions of that runtime, and so do the threads and tasks that it spawns: a virtual clock, threads that take
//! turns, connections within the process. The price of the choice is one predictable branch.
//!
//! ```
//! use hexagram_physical::runtime;
//! use std::time::Duration;
//!
//! let start = runtime::now();
//! let thread = runtime::spawn("hexagram-example", || runtime::sleep(Duration::from_millis(1)))?;
//! assert!(thread.join().is_ok());
//! assert!(start.elapsed() >= Duration::from_millis(1));
//! # Ok::<(), hexagram_physical::Error>(())
//! ```
//!
//! Code that waits for memory shared with another thread (a condition, a channel) uses [`wait_while`] and
//! [`receive`], and code that waits for descriptors [`poll`]: in a simulated world, time passes in these calls.

#![allow(clippy::disallowed_methods, reason = "the place that asks the system")]

mod instant;
mod network;
mod thread;
mod virtual_time;
pub mod work;

#[cfg(test)]
mod tests;

pub use instant::Instant;
pub use network::{connect, connect_local, is_of_this_host, listen, listen_local, poll, resolve};
pub use rustix::event::{PollFd, PollFlags};
pub use thread::{Task, Thread, block_on, receive, receive_within, spawn, spawn_task, wait_for, wait_while};
pub use virtual_time::VirtualTime;
pub use work::Work;

use crate::waiting::doorbell::Bell;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Clock, threads and network of a world. Implement it to run ranks in a world of your own making, and enter it by
/// [`within`].
///
/// Sockets are descriptors of the system. The runtime decides their other end, for example one end of a pair; only
/// [`Runtime::poll`] waits for them.
pub trait Runtime: Send + Sync {
    /// Returns the present time of this world's clock: [`Instant::after_origin`] creates it from a virtual time.
    fn now(&self) -> Instant;

    /// Returns the time since 1970-01-01 00:00 UTC.
    fn unix_time(&self) -> Duration;

    /// Ends the turn of the caller, and begins its next one after `duration`. Zero yields to other threads.
    fn sleep(&self, duration: Duration);

    /// Waits until `endpoint` may have work, or `at_most` has passed.
    fn park(&self, endpoint: &dyn Park, at_most: Duration);

    /// Waits like [`Runtime::park`], for a task: once it is ready, time has passed. A runtime with its own executor
    /// keeps the waker and returns pending. The default blocks the thread.
    fn poll_park(&self, endpoint: &dyn Park, at_most: Duration, context: &mut Context<'_>) -> Poll<()> {
        let _ = context;
        self.park(endpoint, at_most);
        Poll::Ready(())
    }

    /// Waits until `look` returns true, or `at_most` has passed, for memory shared by threads of this process, whose
    /// changes are not signalled. It is called on any thread, one call after another, and does not wait itself. The
    /// default polls once a millisecond.
    fn look_until(&self, look: &mut dyn FnMut() -> bool, at_most: Duration) {
        let start = self.now();
        while !look() {
            let left = at_most.saturating_sub(self.now().duration_since(start));
            if left.is_zero() {
                return;
            }
            self.sleep(left.min(LOOK));
        }
    }

    /// Called when a future is woken that a thread of the caller's process drives.
    fn wake(&self) {}

    /// Called for arithmetic of the calling thread, so that a world with simulated time can charge it.
    fn charge(&self, work: &Work) {
        let _ = work;
    }

    /// Waits until the clock of the world has reached that of the calling thread, which arithmetic may advance.
    fn catch_up(&self) {}

    /// Waits until one of `sources` is ready, and records which are, or until `at_most` has passed. `None` waits
    /// forever.
    ///
    /// # Errors
    /// Those of poll(2).
    fn poll(&self, sources: &mut [PollFd<'_>], at_most: Option<Duration>) -> io::Result<usize>;

    /// Starts `work` as a thread of this world, already within this runtime.
    ///
    /// # Errors
    /// Those of the system, if there can be no further thread.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Starts the future that `task` creates, and drives it on any thread, already within this runtime. The default
    /// uses a separate thread.
    ///
    /// # Errors
    /// As [`Runtime::spawn`].
    fn spawn_task(&self, name: &str, task: Task) -> io::Result<()> {
        self.spawn(name, Box::new(move || block_on(task())))
    }

    /// Returns the addresses of `host`, with `port`.
    ///
    /// # Errors
    /// Those of the resolver.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// Connects to `address`, within `patience`.
    ///
    /// # Errors
    /// Those of connect(2); `TimedOut` after `patience`.
    fn connect(&self, address: &SocketAddr, patience: Duration) -> io::Result<TcpStream>;

    /// Listens at `address`; port 0 stands for any free one.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    fn listen(&self, address: SocketAddr) -> io::Result<TcpListener>;

    /// Connects to the listener of this host that has the abstract `name`, within `patience`.
    ///
    /// # Errors
    /// Those of connect(2); `WouldBlock` after `patience`.
    fn connect_local(&self, name: &str, patience: Duration) -> io::Result<UnixStream>;

    /// Listens under the abstract `name`, for processes of this host only.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    fn listen_local(&self, name: &str) -> io::Result<UnixListener>;
}

/// Place where an idle thread parks: its endpoint, of any [`Transport`](crate::Transport).
pub trait Park {
    /// Returns the bell that ends the park.
    fn bell(&self) -> Arc<dyn Bell>;

    /// Waits like the system, until there is work, the bell rings, or `at_most` has passed.
    fn park(&self, at_most: Duration);
}

/// Time between two polls of the work of another thread that cannot be awaited.
const LOOK: Duration = Duration::from_millis(1);

thread_local! {
    /// Set while there is a runtime other than the system. It is separate from the runtime: a flag needs no destructor, so an
    /// access needs no check.
    static REPLACED: Cell<bool> = const { Cell::new(false) };
    static CURRENT: RefCell<Option<Arc<dyn Runtime>>> = const { RefCell::new(None) };
}

/// Runs `work` with `runtime` in place of the system, on this thread and on those that it spawns.
pub fn within<R>(runtime: Arc<dyn Runtime>, work: impl FnOnce() -> R) -> R {
    let _guard = enter(Some(runtime));
    work()
}

/// Returns the runtime of this thread; `None` for the system.
pub fn current() -> Option<Arc<dyn Runtime>> {
    if REPLACED.get() { CURRENT.with_borrow(Clone::clone) } else { None }
}

/// Returns true if this thread has a runtime other than the system.
#[inline]
pub fn is_replaced() -> bool {
    REPLACED.get()
}

/// Puts the runtime that was current before back, when it is dropped.
struct RuntimeGuard(Option<Arc<dyn Runtime>>);

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        put(self.0.take());
    }
}

fn enter(runtime: Option<Arc<dyn Runtime>>) -> RuntimeGuard {
    RuntimeGuard(put(runtime))
}

fn put(runtime: Option<Arc<dyn Runtime>>) -> Option<Arc<dyn Runtime>> {
    REPLACED.set(runtime.is_some());
    CURRENT.replace(runtime)
}

/// Returns the present time.
#[inline]
pub fn now() -> Instant {
    if !is_replaced() {
        return Instant::of_system();
    }
    current().map_or_else(Instant::of_system, |runtime| runtime.now())
}

/// Returns the time since 1970-01-01 00:00 UTC; zero if the system's clock is set to before.
pub fn unix_time() -> Duration {
    match current() {
        Some(runtime) => runtime.unix_time(),
        None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
    }
}

/// Waits for `duration`.
pub fn sleep(duration: Duration) {
    match current() {
        Some(runtime) => runtime.sleep(duration),
        None => std::thread::sleep(duration),
    }
}

/// Lets other threads run.
#[inline]
pub fn yield_now() {
    match current() {
        Some(runtime) => runtime.sleep(Duration::ZERO),
        None => std::thread::yield_now(),
    }
}

/// In a world with simulated time, waits until the charged arithmetic of this thread has completed. Call it before
/// other threads can see the results, which exist only from then on in virtual time. No effect elsewhere.
#[inline]
pub fn catch_up() {
    if is_replaced()
        && let Some(runtime) = current()
    {
        runtime.catch_up();
    }
}

/// Charges the arithmetic of this thread to the runtime. On the system, it takes its real time.
#[inline]
pub(crate) fn charge(work: impl FnOnce() -> Work) {
    if is_replaced()
        && let Some(runtime) = current()
    {
        runtime.charge(&work());
    }
}
