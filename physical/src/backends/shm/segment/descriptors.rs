//! Messages over unix sockets that carry file descriptors: how ranks pass their shared memory to each other.

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Maximum number of files of one message.
pub(crate) const FILES: usize = 2;

/// Connection from a peer, and its files once they have arrived.
pub(crate) struct ShmConnection {
    pub(crate) stream: UnixStream,
    pub(crate) files: Vec<OwnedFd>,
}

impl Read for ShmConnection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (bytes, files) = receive(&self.stream, into)?;
        self.files.extend(files);
        // A sender of more files is not a rank, and must not use up the descriptors of this process.
        if self.files.len() > FILES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(bytes)
    }
}

impl Write for ShmConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for ShmConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sends bytes, the first of which carries files.
pub(crate) fn send(stream: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    if sent < bytes.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
}

/// Receives available bytes, and the files that came with them.
fn receive(stream: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(into)];
    let received = retry_on_intr(|| recvmsg(stream, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    // The kernel silently drops files if this process has no descriptors left.
    if is_cut && files.len() < FILES {
        return Err(Errno::MFILE.into());
    }
    Ok((received.bytes, files))
}

/// Receives a message of exactly `N` bytes with its files, or `None` before it arrives. Senders write such a message
/// in one call, and it is smaller than any socket buffer, so that it arrives as a whole.
pub(crate) fn receive_whole<const N: usize>(
    stream: &UnixStream,
) -> io::Result<Option<([u8; N], Vec<OwnedFd>)>> {
    let mut bytes = [0; N];
    match receive(stream, &mut bytes) {
        Ok((got, files)) if got == N => Ok(Some((bytes, files))),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
