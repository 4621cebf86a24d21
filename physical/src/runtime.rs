//! Clocks, sleeps, threads and sockets of everything above the backends. Use this module wherever you would name
//! [`std::time::Instant`], [`std::thread`] or [`std::net`], so that a simulated world can give them out instead.
//!
//! Without further ado each function here is the standard library's. A thread that runs [`within`] a [`Runtime`] of its
//! own gets all of them from there, and so do the threads and tasks that it spawns: a virtual clock, threads that take
//! turns, connections that lead into the same process. The price of the choice is one predictable branch.
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
//! What waits for memory that another thread shares (a condition, a channel) waits by [`wait_while`] and [`receive`],
//! and what waits for descriptors by [`poll`]: in a simulated world, those are the places where time passes.

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

use crate::doorbell::Bell;
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
/// Sockets are descriptors of the system, which the runtime connects with whatever it likes, as one end of a pair; they
/// are waited for by [`Runtime::poll`] only.
pub trait Runtime: Send + Sync {
    /// Returns the present time of this world's clock: [`Instant::after_origin`] makes it of a virtual one.
    fn now(&self) -> Instant;

    /// Returns the time since 1970-01-01 00:00 UTC.
    fn unix_time(&self) -> Duration;

    /// Ends the caller's turn, and begins its next one after `duration`. Zero lets others run that can.
    fn sleep(&self, duration: Duration);

    /// Waits until `endpoint` may have something to do, or `at_most` is over.
    fn park(&self, endpoint: &dyn Park, at_most: Duration);

    /// Waits as [`Runtime::park`] does, for a task: once it is ready, time has passed. Whoever drives tasks by an
    /// executor of their own keeps the waker and answers that it is not. The default blocks the thread.
    fn poll_park(&self, endpoint: &dyn Park, at_most: Duration, context: &mut Context<'_>) -> Poll<()> {
        let _ = context;
        self.park(endpoint, at_most);
        Poll::Ready(())
    }

    /// Waits until `look` returns true, or `at_most` is over: for memory that threads of this process share, a change of
    /// which tells nobody. It is called on whatever thread, one call after another, and does not wait itself. The default
    /// looks once a millisecond.
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

    /// Is told that a future was woken which a thread of the caller's process drives.
    fn wake(&self) {}

    /// Is told of arithmetic that the caller's thread does, so that a world whose time does not pass by itself can let
    /// it take some.
    fn charge(&self, work: &Work) {
        let _ = work;
    }

    /// Waits until the world's clock has come to where the caller's thread is, if arithmetic lets that go ahead.
    fn catch_up(&self) {}

    /// Waits until one of `sources` is ready, and notes which are, or until `at_most` is over. `None` waits for ever.
    ///
    /// # Errors
    /// Those of poll(2).
    fn poll(&self, sources: &mut [PollFd<'_>], at_most: Option<Duration>) -> io::Result<usize>;

    /// Starts `work` as a thread of this world. It is within this runtime already.
    ///
    /// # Errors
    /// Those of the system, if there can be no further thread.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Starts the future that `task` makes; drives it wherever this world wants to. It is within this runtime already.
    /// The default gives it a thread.
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

    /// Listens at `address`; port 0 stands for any that is free.
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

/// Place where a thread parks while it has nothing to do: its endpoint, whatever the
/// [`Transport`](crate::Transport).
pub trait Park {
    /// Returns the bell that ends the park.
    fn bell(&self) -> Arc<dyn Bell>;

    /// Waits as the system does: until there is something to do, the bell rings, or `at_most` is over.
    fn park(&self, at_most: Duration);
}

/// Time between two looks at what another thread does, where it cannot be waited for.
const LOOK: Duration = Duration::from_millis(1);

thread_local! {
    /// Set while there is a runtime other than the system. Apart from it, as it needs no destructor and so no check.
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
struct Guard(Option<Arc<dyn Runtime>>);

impl Drop for Guard {
    fn drop(&mut self) {
        put(self.0.take());
    }
}

fn enter(runtime: Option<Arc<dyn Runtime>>) -> Guard {
    Guard(put(runtime))
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

/// Lets other threads run that can.
#[inline]
pub fn yield_now() {
    match current() {
        Some(runtime) => runtime.sleep(Duration::ZERO),
        None => std::thread::yield_now(),
    }
}

/// Waits, in a world whose time is simulated, until arithmetic of this thread that has been charged is over. Call it
/// before you show other threads what was computed, so that they do not see it too early. It does nothing elsewhere.
#[inline]
pub fn catch_up() {
    if is_replaced()
        && let Some(runtime) = current()
    {
        runtime.catch_up();
    }
}

/// Tells the runtime of arithmetic that this thread does. On the system it takes the time that it takes.
#[inline]
pub(crate) fn charge(work: impl FnOnce() -> Work) {
    if is_replaced()
        && let Some(runtime) = current()
    {
        runtime.charge(&work());
    }
}
