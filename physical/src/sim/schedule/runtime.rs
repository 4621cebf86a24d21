//! The simulated world as a runtime: clock, sleeps and threads of its ranks.

use super::agenda::{Nanoseconds, nanoseconds};
use super::{Pause, Predicate, Simulator};
use crate::runtime::{Instant, Park, PollFd, Runtime, Work};
use crate::sim::sockets;
use rustix::event::Timespec;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::ptr::NonNull;
use std::time::Duration;

fn no_addresses() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "ranks of a simulated cluster have no addresses")
}

impl Runtime for Simulator {
    fn now(&self) -> Instant {
        Instant::after_origin(Duration::from_nanos(self.lock().local_time()))
    }

    fn unix_time(&self) -> Duration {
        Duration::from_nanos(self.lock().local_time())
    }

    fn sleep(&self, duration: Duration) {
        self.suspend(Pause::Asleep, duration);
    }

    fn park(&self, _: &dyn Park, at_most: Duration) {
        self.suspend(Pause::Parked, at_most);
    }

    fn look_until(&self, look: &mut dyn FnMut() -> bool, at_most: Duration) {
        let end = self.lock().local_time().saturating_add(nanoseconds(at_most));
        while !look() {
            let left = {
                let mut state = self.lock();
                let left = end.saturating_sub(state.local_time());
                let running = state.running;
                // SAFETY: the lifetime is erased until the look is taken away again, below, before it ends.
                let look: &mut (dyn FnMut() -> bool + 'static) = unsafe { std::mem::transmute(&mut *look) };
                if let Some(thread) = state.threads.get_mut(running) {
                    thread.look = Some(Predicate(NonNull::from(look)));
                }
                left
            };
            if left == 0 {
                return;
            }
            self.suspend(
                Pause::Looking,
                if end == Nanoseconds::MAX { Duration::MAX } else { Duration::from_nanos(left) },
            );
            let mut state = self.lock();
            let running = state.running;
            let Some(thread) = state.threads.get_mut(running) else { return };
            thread.look = None;
            if std::mem::take(&mut thread.found) {
                return;
            }
        }
    }

    fn wake(&self) {
        let mut state = self.lock();
        if let Some(thread) = state.threads.get(state.running) {
            let rank = thread.rank;
            state.ring(rank);
        }
    }

    fn catch_up(&self) {
        let is_ahead = {
            let state = self.lock();
            state.local_time() > state.now
        };
        if is_ahead {
            self.suspend(Pause::Asleep, Duration::ZERO);
        }
    }

    fn charge(&self, work: &Work) {
        let mut state = self.lock();
        let seconds = state.rates.seconds(work);
        state.charge(seconds);
    }

    fn poll(&self, sources: &mut [PollFd<'_>], at_most: Option<Duration>) -> io::Result<usize> {
        let mut ready = Ok(0);
        let mut look = || {
            ready = rustix::event::poll(sources, Some(&Timespec::default()));
            !matches!(ready, Ok(0))
        };
        self.look_until(&mut look, at_most.unwrap_or(Duration::MAX));
        Ok(ready?)
    }

    fn spawn(&self, _: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let mut state = self.lock();
        let rank = state.running_rank();
        state.begin(rank, work);
        Ok(())
    }

    fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        Err(no_addresses())
    }

    fn connect(&self, _: &SocketAddr, _: Duration) -> io::Result<TcpStream> {
        Err(no_addresses())
    }

    fn listen(&self, _: SocketAddr) -> io::Result<TcpListener> {
        Err(no_addresses())
    }

    fn connect_local(&self, name: &str, patience: Duration) -> io::Result<UnixStream> {
        let (call, stream) = self.call(name)?;
        let mut answer = None;
        let mut look = || {
            answer = self.lock().sockets.answer(call);
            answer.is_some()
        };
        self.look_until(&mut look, patience);
        answer.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))?;
        sockets::bound(&stream, patience)?;
        Ok(stream)
    }

    fn listen_local(&self, name: &str) -> io::Result<UnixListener> {
        let mut state = self.lock();
        let rank = state.running_rank();
        state.sockets.listen(rank, name)
    }
}
