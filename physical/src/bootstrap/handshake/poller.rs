//! Readiness of many descriptors, at a cost that does not grow with their number.

use crate::waiting::doorbell::timespec;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Maximum number of readable descriptors per call. The next call returns the others.
const AT_ONCE: usize = 1024;

/// Set of watched descriptors, each with a number chosen by its owner. Readable itself while any of them is.
pub(crate) struct Poller(OwnedFd);

impl Poller {
    /// Creates an empty set.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Poller(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Watches `source`, as `number`, for bytes to read or its end, until it is closed or forgotten.
    pub(crate) fn watch(&self, source: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(&self.0, source, EventData::new_u64(number), EventFlags::IN)?)
    }

    /// Stops watching `source`.
    pub(crate) fn forget(&self, source: impl AsFd) {
        // It fails only if the source was not watched.
        let _ = epoll::delete(&self.0, source);
    }

    /// Returns the numbers of the descriptors that can be read now.
    pub(crate) fn ready(&self) -> Vec<u64> {
        let mut events: Vec<Event> = Vec::with_capacity(AT_ONCE);
        // An interrupted call returns none, and the caller retries.
        let _ = epoll::wait(&self.0, spare_capacity(&mut events), Some(&timespec(Duration::ZERO)));
        events.iter().map(|event| event.data.u64()).collect()
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_those_are_told_that_can_be_read() {
        let poller = Poller::new().unwrap();
        let mut pairs: Vec<_> = (0..10).map(|_| UnixStream::pair().unwrap()).collect();
        for (number, (here, _)) in pairs.iter().enumerate() {
            poller.watch(here, number as u64).unwrap();
        }
        assert_eq!(poller.ready(), []);
        for number in [3, 7] {
            pairs[number].1.write_all(&[1]).unwrap();
        }
        let mut ready = poller.ready();
        ready.sort();
        assert_eq!(ready, [3, 7]);
        pairs[3].0.read_exact(&mut [0]).unwrap();
        poller.forget(&pairs[7].0);
        assert_eq!(poller.ready(), []);
        // An end can be read, too.
        let (here, there) = &mut pairs[5];
        let _ = there.shutdown(std::net::Shutdown::Both);
        assert_eq!(poller.ready(), [5]);
        poller.forget(&*here);
    }
}
