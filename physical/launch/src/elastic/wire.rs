//! The launcher's end of the connection to one process.

use super::messages::ProcessId;
use hexagram_physical::launcher::MemberRequest;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Blocking;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

/// Connection to a process, which ends when this is dropped.
pub(super) struct MemberConnection {
    notices: UnboundedSender<Vec<u8>>,
    reader: AbortHandle,
}

impl MemberConnection {
    /// Opens a connection. Returns it with the descriptor for the process, whose requests go to `requests`.
    ///
    /// # Errors
    /// The system errors, if no descriptor is left.
    pub(super) fn open(
        process: ProcessId,
        requests: UnboundedSender<(ProcessId, MemberRequest)>,
    ) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = Blocking::pair()?;
        ours.set_nonblocking(true)?;
        let (mut from, mut to) = UnixStream::from_std(ours)?.into_split();
        let (notices, mut queue) = unbounded_channel::<Vec<u8>>();
        tokio::spawn(async move {
            while let Some(notice) = queue.recv().await {
                // The end of the process is noticed by its own descriptor.
                if to.write_all(&notice).await.is_err() {
                    return;
                }
            }
        });
        let reader = tokio::spawn(async move {
            let mut unread = Vec::new();
            while from.read_buf(&mut unread).await.is_ok_and(|bytes| bytes > 0) {
                loop {
                    match MemberRequest::split(&mut unread) {
                        Ok(Some(request)) => drop(requests.send((process, request))),
                        Ok(None) => break,
                        // A process that breaks the protocol never gets ready, and is killed for that.
                        Err(_) => return,
                    }
                }
            }
        });
        Ok((MemberConnection { notices, reader: reader.abort_handle() }, theirs.into()))
    }

    /// Sends an encoded message.
    pub(super) fn send(&self, notice: Vec<u8>) {
        let _ = self.notices.send(notice);
    }
}

impl Drop for MemberConnection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}
