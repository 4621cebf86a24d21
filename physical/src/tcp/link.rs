//! What lies between two processes: a non-blocking socket.

use crate::stream::Read;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

pub(super) struct Link(TcpStream);

impl Link {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Link(stream))
    }

    /// Writes a prefix of `parts`; 0 if the socket's buffer is full.
    pub(super) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            match self.0.write_vectored(parts) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                outcome => return outcome,
            }
        }
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<Read> {
        loop {
            match self.0.read(into) {
                Ok(0) => return Ok(Read::End),
                Ok(bytes) => return Ok(Read::Bytes(bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Read::Nothing),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
