//! The link between two processes: non-blocking sockets that together carry one stream of bytes in each direction.
//!
//! ```text
//! stream = stripe*                      stripe i travels on socket i mod k, k being the number of sockets
//! stripe = byte × STRIPE                the last one is shorter
//! ```
//!
//! Both sides count bytes, so that only the bytes of the stream are sent. With one socket there are no stripes.

use crate::backends::socket::Socket;
use crate::backends::stream::{Link, ReadOutcome};
use crate::transport::TransportKind;
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::cell::Cell;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

/// Bytes of a stripe. It is long enough to read and write a large message in large pieces, and short enough that the
/// buffer of every socket holds some. All sockets then carry bytes at the same time, although the stripes are written
/// and read in order.
pub(super) const STRIPE: usize = 256 * 1024;
/// Bytes of a send buffer between processes on one kernel: bytes in flight then stay in the cache, which was measured
/// to double the bandwidth. Between machines, the kernel sizes the buffer by the network.
const NEAR: usize = 128 * 1024;
/// Maximum number of parts that one write takes.
pub(super) const PARTS: usize = 32;

/// State of a socket as far as it is known without a system call: [`TcpParking`](super::TcpParking) adds the reports
/// of epoll, and the link removes those that its reads and writes have used up.
#[derive(Debug)]
pub(super) struct Readiness {
    read: Cell<bool>,
    write: Cell<bool>,
    /// True if the end of the stream has been reported. The report is not repeated, so that reading stops only when a
    /// read finds the end.
    end: Cell<bool>,
}

impl Readiness {
    /// Adds a report of epoll.
    pub(super) fn report(&self, read: bool, write: bool, end: bool) {
        self.read.set(self.read.get() | read);
        self.write.set(self.write.get() | write);
        self.end.set(self.end.get() | end);
    }
}

/// Socket with its readiness.
pub(super) struct WatchedSocket {
    socket: Box<dyn Socket>,
    ready: Rc<Readiness>,
}

impl WatchedSocket {
    /// Creates a socket that may be ready for everything.
    fn new(socket: Box<dyn Socket>) -> Self {
        let ready = Readiness { read: Cell::new(true), write: Cell::new(true), end: Cell::new(false) };
        WatchedSocket { socket, ready: Rc::new(ready) }
    }

    /// Returns the readiness, for epoll to report to.
    pub(super) fn readiness(&self) -> Rc<Readiness> {
        Rc::clone(&self.ready)
    }

    /// Writes a prefix of the first `limit` bytes of `parts`, and returns its length, 0 if the buffer is full.
    fn write(&mut self, parts: &[IoSlice<'_>], limit: usize) -> io::Result<usize> {
        if !self.ready.write.get() {
            return Ok(0);
        }
        let mut cut = [IoSlice::new(&[]); PARTS];
        let (parts, offered) = prefix(parts, limit, &mut cut);
        let written = loop {
            match self.socket.write_vectored(parts) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                outcome => break outcome?,
            }
        };
        // A stream that takes less than it is offered is full: epoll will report free space.
        self.ready.write.set(written == offered || (written > 0 && !self.socket.is_plain()));
        Ok(written)
    }

    /// Reads into a prefix of `into`.
    fn read(&mut self, into: &mut [u8]) -> io::Result<ReadOutcome> {
        if !self.ready.read.get() {
            return Ok(ReadOutcome::Nothing);
        }
        let bytes = loop {
            match self.socket.read(into) {
                Ok(0) => return Ok(ReadOutcome::End),
                Ok(bytes) => break bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ready.read.set(false);
                    return Ok(ReadOutcome::Nothing);
                }
                Err(error) => return Err(error),
            }
        };
        // A stream that gives less than it is asked for is empty: epoll will report more.
        self.ready.read.set(bytes == into.len() || self.ready.end.get() || !self.socket.is_plain());
        Ok(ReadOutcome::Bytes(bytes))
    }
}

impl AsFd for WatchedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Position in the stream for one direction: the socket of the current stripe, and the bytes missing from it.
struct StripeCursor {
    socket: usize,
    missing: usize,
}

impl StripeCursor {
    /// Counts `bytes` of the stream that went over one of `sockets` sockets.
    fn pass(&mut self, bytes: usize, sockets: usize) {
        self.missing -= bytes;
        if self.missing == 0 {
            *self = StripeCursor { socket: (self.socket + 1) % sockets, missing: STRIPE };
        }
    }
}

/// Sockets to one peer; none to this rank itself, and none after an end or an error.
pub(crate) struct TcpLink {
    sockets: Vec<WatchedSocket>,
    writing: StripeCursor,
    reading: StripeCursor,
}

impl TcpLink {
    /// Creates a link over sockets that both sides give in the same order; `near` if both are on one kernel.
    pub(crate) fn new(sockets: Vec<Box<dyn Socket>>, near: bool) -> io::Result<Self> {
        for socket in &sockets {
            if near {
                set_socket_send_buffer_size(socket.tcp(), NEAR)?;
            }
            socket.tcp().set_nonblocking(true)?;
        }
        Ok(TcpLink {
            sockets: sockets.into_iter().map(WatchedSocket::new).collect(),
            ..TcpLink::unconnected()
        })
    }

    /// Creates a link without sockets, which carries no bytes.
    pub(super) fn unconnected() -> Self {
        let cursor = || StripeCursor { socket: 0, missing: STRIPE };
        TcpLink { sockets: Vec::new(), writing: cursor(), reading: cursor() }
    }

    /// Returns the sockets, for epoll.
    pub(super) fn sockets(&self) -> &[WatchedSocket] {
        &self.sockets
    }

    /// Reads into a prefix of `into` from the socket of the current stripe.
    fn read_stripe(&mut self, into: &mut [u8]) -> io::Result<ReadOutcome> {
        let TcpLink { sockets, reading, .. } = self;
        let count = sockets.len();
        let socket = sockets.get_mut(reading.socket).ok_or_else(closed)?;
        let limit = if count == 1 { into.len() } else { into.len().min(reading.missing) };
        let read = socket.read(&mut into[..limit])?;
        if let ReadOutcome::Bytes(bytes) = read
            && count > 1
        {
            reading.pass(bytes, count);
        }
        Ok(read)
    }
}

/// Returns the error of a link without sockets.
fn closed() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Link for TcpLink {
    fn path(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let TcpLink { sockets, writing, .. } = self;
        let count = sockets.len();
        let socket = sockets.get_mut(writing.socket).ok_or_else(closed)?;
        let limit = if count == 1 { usize::MAX } else { writing.missing };
        let written = socket.write(parts, limit)?;
        if count > 1 {
            writing.pass(written, count);
        }
        Ok(written)
    }

    fn committed(&self) -> usize {
        self.sockets.get(self.writing.socket).map_or(0, |watched| watched.socket.committed())
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<ReadOutcome> {
        let read = self.read_stripe(into);
        if matches!(read, Ok(ReadOutcome::End) | Err(_)) {
            self.sockets.clear();
        }
        read
    }
}

/// Returns the first `limit` bytes of `parts`, laid out in `cut` if that is not all of them, and their number.
pub(super) fn prefix<'c, 'b: 'c>(
    parts: &'b [IoSlice<'b>],
    limit: usize,
    cut: &'c mut [IoSlice<'b>; PARTS],
) -> (&'c [IoSlice<'b>], usize) {
    let whole: usize = parts.iter().map(|part| part.len()).sum();
    if whole <= limit {
        return (parts, whole);
    }
    let mut used = 0;
    let mut left = limit;
    for part in parts.iter().filter(|part| !part.is_empty()).take(PARTS) {
        let part = &part[..part.len().min(left)];
        if part.is_empty() {
            break;
        }
        cut[used] = IoSlice::new(part);
        left -= part.len();
        used += 1;
    }
    (&cut[..used], limit - left)
}
