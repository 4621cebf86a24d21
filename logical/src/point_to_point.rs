//! Messages between two ranks, in order.

use crate::centralized::{free_to_read, free_to_write};
use crate::{Buffer, Call, Communicator, Land, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

fn fingerprint(buffer: &Buffer) -> Fingerprint {
    Fingerprint::new(OperationKind::SendRecv, buffer.dtype(), buffer.len())
}

impl Communicator {
    /// Sends `buffer` to rank `to`, whose matching call is [`Communicator::recv`].
    ///
    /// The k-th send of a rank to another meets that one's k-th receive. Done when the buffer may be reused; a
    /// message may need the receiver's call first (over `thread` always, elsewhere when it is large), so two ranks that
    /// both send before they receive may wait for each other until the deadline. Bytes: S. Memory: none.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) on the receiver if element types or counts differ.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Thread, 2, |comm| {
    /// if comm.rank() == 0 {
    ///     comm.block_on(comm.send(&Buffer::from_slice(&[7, 8])?, 1))?;
    /// } else {
    ///     let mut x = Buffer::zeroed(DType::I32, 2)?;
    ///     comm.block_on(comm.recv(&mut x, 0))?;
    ///     assert_eq!(*x.host::<i32>()?, [7, 8]);
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn send(&self, buffer: &Buffer, to: usize) -> Result<()> {
        free_to_read(buffer)?;
        let body = async |call: &Call<'_>| call.send(to, 0, buffer, 0..buffer.len())?.await.map(drop);
        self.operate_send(to, fingerprint(buffer), body).await
    }

    /// Receives into `buffer` the next message from rank `from`. Bytes: none. Memory: none if the message comes after
    /// this call, else S.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Thread, 2, |comm| {
    /// let rank = comm.rank();
    /// let mut x = Buffer::from_slice(&[rank as i32])?;
    /// if rank == 0 {
    ///     comm.block_on(comm.send(&x, 1))?;
    /// } else {
    ///     comm.block_on(comm.recv(&mut x, 0))?;
    /// }
    /// assert_eq!(*x.host::<i32>()?, [0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn recv(&self, buffer: &mut Buffer, from: usize) -> Result<()> {
        free_to_write(buffer)?;
        let whole = 0..buffer.len();
        let body = async |call: &Call<'_>| call.recv(from, 0, buffer, whole, Land::Copy)?.await.map(drop);
        self.operate_recv(from, fingerprint(buffer), body).await
    }
}
