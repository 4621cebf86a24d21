//! The simulated world as a runtime: clock, sleeps and threads of its ranks. Open this to see what a rank gets that asks
//! for the time or waits.

use super::{Look, Pause, Simulator};
use crate::runtime::{Instant, Park, PollFd, Runtime, Work};
use crate::sim::agenda::{Time, nanoseconds};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::ptr::NonNull;
use std::time::Duration;

fn no_sockets() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "ranks of this simulated world have no sockets")
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
                    thread.look = Some(Look(NonNull::from(look)));
                }
                left
            };
            if left == 0 {
                return;
            }
            self.suspend(
                Pause::Looking,
                if end == Time::MAX { Duration::MAX } else { Duration::from_nanos(left) },
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
            state.wake_parked(rank);
        }
    }

    fn charge(&self, work: &Work) {
        let mut state = self.lock();
        let seconds = state.rates.seconds(work);
        state.charge(seconds);
    }

    fn poll(&self, _: &mut [PollFd<'_>], _: Option<Duration>) -> io::Result<usize> {
        Err(no_sockets())
    }

    fn spawn(&self, _: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let mut state = self.lock();
        let rank = state.threads.get(state.running).map_or(0, |thread| thread.rank);
        state.begin(rank, work);
        Ok(())
    }

    fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        Err(no_sockets())
    }

    fn connect(&self, _: &SocketAddr, _: Duration) -> io::Result<TcpStream> {
        Err(no_sockets())
    }

    fn listen(&self, _: SocketAddr) -> io::Result<TcpListener> {
        Err(no_sockets())
    }

    fn connect_local(&self, _: &str, _: Duration) -> io::Result<UnixStream> {
        Err(no_sockets())
    }

    fn listen_local(&self, _: &str) -> io::Result<UnixListener> {
        Err(no_sockets())
    }
}
