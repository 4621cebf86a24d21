//! Messages between two ranks, in order.

use crate::{Buffer, Communicator, Land, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

fn fingerprint(buffer: &Buffer) -> Fingerprint {
    Fingerprint::new(OperationKind::SendRecv, buffer.dtype(), buffer.len())
}

impl Communicator {
    /// Sends `buffer` to rank `to`, whose matching call is [`Communicator::recv`].
    ///
    /// The k-th send of a rank to another meets that one's k-th receive. Done when the buffer may be reused; a large
    /// message may need the receiver's call first, so two ranks that both send before they receive may wait for ever,
    /// that is, until the deadline. Bytes: S. Memory: none.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) on the receiver if element types or counts differ.
    pub async fn send(&self, buffer: &Buffer, to: usize) -> Result<()> {
        let call = self.begin_send(to, fingerprint(buffer))?;
        call.send(to, 0, buffer, 0..buffer.len())?.await?;
        Ok(())
    }

    /// Receives into `buffer` the next message from rank `from`. Bytes: none. Memory: none if the message comes after
    /// this call, else S.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub async fn recv(&self, buffer: &mut Buffer, from: usize) -> Result<()> {
        let call = self.begin_recv(from, fingerprint(buffer))?;
        call.recv(from, 0, buffer, 0..buffer.len(), Land::Copy)?.await?;
        Ok(())
    }
}
