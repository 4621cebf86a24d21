//! The link between two processes: non-blocking sockets that together carry one stream of bytes in each direction.
//!
//! ```text
//! stream = stripe*                      stripe i travels on socket i mod k, k being the number of sockets
//! stripe = byte × STRIPE                the last one is shorter
//! ```
//!
//! Both sides count bytes, so nothing but the bytes of the stream is sent. With one socket there are no stripes.

use crate::socket::Socket;
use crate::stream::Read;
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes of a stripe. It is so long that a large message is read and written in large pieces, and so short that the
/// buffer of every socket holds some: all sockets then carry bytes at once although the stripes are written and read in
/// order.
pub(super) const STRIPE: usize = 256 * 1024;
/// Bytes of a send buffer between processes on one kernel, where the wire is memory: bytes in flight stay in the cache,
/// which was measured to double the bandwidth. Between machines the kernel sizes the buffer by the network.
const NEAR: usize = 128 * 1024;
/// Most parts that one write takes.
pub(super) const PARTS: usize = 32;

/// State of a socket as far as it is known without a system call; epoll reports changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Readiness {
    pub(super) read: bool,
    pub(super) write: bool,
    /// True if the end of the stream has been reported. The report does not come again, so reading stops only when a
    /// read finds the end.
    pub(super) end: bool,
}

/// Socket with its readiness.
struct WatchedSocket {
    socket: Socket,
    ready: Readiness,
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

/// Sockets to one peer.
pub(crate) struct TcpLink {
    sockets: Vec<WatchedSocket>,
    writing: StripeCursor,
    reading: StripeCursor,
}

impl TcpLink {
    /// Creates a link over sockets that both sides give in the same order; `near` if both are on one kernel.
    pub(crate) fn new(sockets: Vec<Socket>, near: bool) -> io::Result<Self> {
        let watched = |socket: Socket| -> io::Result<WatchedSocket> {
            if near {
                set_socket_send_buffer_size(socket.tcp(), NEAR)?;
            }
            socket.tcp().set_nonblocking(true)?;
            Ok(WatchedSocket { socket, ready: Readiness { read: true, write: true, end: false } })
        };
        let sockets: io::Result<Vec<WatchedSocket>> = sockets.into_iter().map(watched).collect();
        let cursor = || StripeCursor { socket: 0, missing: STRIPE };
        Ok(TcpLink { sockets: sockets?, writing: cursor(), reading: cursor() })
    }

    /// Returns the descriptors of the sockets, for epoll.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|watched| watched.socket.as_fd())
    }

    /// Adds what epoll reports about one of the sockets.
    pub(super) fn update_readiness(&mut self, socket: usize, news: Readiness) {
        let Some(WatchedSocket { ready, .. }) = self.sockets.get_mut(socket) else { return };
        ready.read |= news.read;
        ready.write |= news.write;
        ready.end |= news.end;
    }

    /// Returns true if a read may find something.
    pub(super) fn is_readable(&self) -> bool {
        self.sockets[self.reading.socket].ready.read
    }

    /// Returns the number of bytes that have to be written next.
    pub(super) fn committed(&self) -> usize {
        self.sockets[self.writing.socket].socket.committed()
    }

    /// Writes a prefix of `parts` and returns its length, 0 if the buffer of the socket is full.
    pub(super) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let TcpLink { sockets, writing, .. } = self;
        let count = sockets.len();
        let WatchedSocket { socket, ready } = &mut sockets[writing.socket];
        if !ready.write {
            return Ok(0);
        }
        let mut cut = [IoSlice::new(&[]); PARTS];
        let limit = if count == 1 { usize::MAX } else { writing.missing };
        let (parts, offered) = prefix(parts, limit, &mut cut);
        let written = loop {
            match socket.write_vectored(parts) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                outcome => break outcome?,
            }
        };
        // A stream that takes less than it is offered is full: epoll will report free space.
        ready.write = written == offered || (written > 0 && !socket.is_plain());
        if count > 1 {
            writing.pass(written, count);
        }
        Ok(written)
    }

    /// Reads into a prefix of `into`.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<Read> {
        let TcpLink { sockets, reading, .. } = self;
        let count = sockets.len();
        let WatchedSocket { socket, ready } = &mut sockets[reading.socket];
        if !ready.read {
            return Ok(Read::Nothing);
        }
        let limit = if count == 1 { into.len() } else { into.len().min(reading.missing) };
        let bytes = loop {
            match socket.read(&mut into[..limit]) {
                Ok(0) => return Ok(Read::End),
                Ok(bytes) => break bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.read = false;
                    return Ok(Read::Nothing);
                }
                Err(error) => return Err(error),
            }
        };
        // A stream that gives less than it is asked for is empty: epoll will report more.
        ready.read = bytes == limit || ready.end || !socket.is_plain();
        if count > 1 {
            reading.pass(bytes, count);
        }
        Ok(Read::Bytes(bytes))
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
