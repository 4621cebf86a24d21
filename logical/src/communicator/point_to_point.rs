//! Messages between two ranks: in the order of the calls, or under user tags.
//!
//! A tag is any `u32`. Tagged messages never match messages without a tag, nor those of other groups, and different
//! tags are unordered: of the messages from one rank to another under one tag, the k-th send matches the k-th
//! receive. Receives from any rank and from a certain rank may be mixed under one tag: a message that matches both
//! goes to the one posted first.

use crate::centralized::{free_to_read, free_to_write};
use crate::{Buffer, Call, Communicator, Error, Primitive, ReceiveMode};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

fn fingerprint(operation: OperationKind, buffer: &Buffer) -> Fingerprint {
    Fingerprint::new(operation, buffer.dtype(), buffer.len())
}

impl Communicator {
    /// Sends `buffer` to rank `to`, whose matching call is [`Communicator::recv`].
    ///
    /// The k-th send of one rank to another matches the k-th receive there. Completes when the buffer may be reused.
    /// A message may wait for the receiver's call (over `thread` always, otherwise if it is large). So two ranks that
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
    pub fn send<'a>(&'a self, buffer: &'a Buffer, to: usize) -> Primitive<'a> {
        Box::pin(async move {
            free_to_read(buffer)?;
            let body = async |call: &Call<'_>| call.send(to, 0, buffer, 0..buffer.len())?.await.map(drop);
            self.operate_send(to, fingerprint(OperationKind::SendRecv, buffer), body).await
        })
    }

    /// Receives into `buffer` the next message from rank `from`. Bytes: none. Memory: none if the message arrives
    /// after this call, else S.
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
    pub fn recv<'a>(&'a self, buffer: &'a mut Buffer, from: usize) -> Primitive<'a> {
        Box::pin(async move {
            free_to_write(buffer)?;
            let whole = 0..buffer.len();
            let body =
                async |call: &Call<'_>| call.recv(from, 0, buffer, whole, ReceiveMode::Copy)?.await.map(drop);
            self.operate_recv(from, fingerprint(OperationKind::SendRecv, buffer), body).await
        })
    }

    /// Sends `buffer` to rank `to` under a tag. Otherwise as [`Communicator::send`].
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) on the receiver if element types or counts differ.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Shm, 2, |comm| {
    /// let mut x = Buffer::from_slice(&[comm.rank() as i32])?;
    /// if comm.rank() == 0 {
    ///     comm.block_on(comm.send_tagged(&x, 1, 7))?;
    ///     comm.block_on(comm.send_tagged(&x, 1, 8))?;
    /// } else {
    ///     comm.block_on(comm.recv_tagged(&mut x, 0, 8))?;
    ///     comm.block_on(comm.recv_tagged(&mut x, 0, 7))?;
    /// }
    /// assert_eq!(*x.host::<i32>()?, [0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn send_tagged<'a>(&'a self, buffer: &'a Buffer, to: usize, tag: u32) -> Primitive<'a> {
        Box::pin(async move {
            self.check_rank(to)?;
            free_to_read(buffer)?;
            let body = async |call: &Call<'_>| call.send(to, 0, buffer, 0..buffer.len())?.await.map(drop);
            self.operate_tagged(tag, fingerprint(OperationKind::Message, buffer), body).await
        })
    }

    /// Receives into `buffer` the next message from rank `from` under a tag. Otherwise as [`Communicator::recv`].
    ///
    /// # Errors
    /// As [`Communicator::send_tagged`].
    pub fn recv_tagged<'a>(&'a self, buffer: &'a mut Buffer, from: usize, tag: u32) -> Primitive<'a> {
        Box::pin(async move {
            self.check_rank(from)?;
            free_to_write(buffer)?;
            let whole = 0..buffer.len();
            let body =
                async |call: &Call<'_>| call.recv(from, 0, buffer, whole, ReceiveMode::Copy)?.await.map(drop);
            self.operate_tagged(tag, fingerprint(OperationKind::Message, buffer), body).await
        })
    }

    /// Receives into `buffer` the first message under a tag from any rank of the group, and returns that rank. Otherwise
    /// as [`Communicator::recv`].
    ///
    /// The first of several messages depends on timing. A failed rank ends the wait, whichever rank was expected; so
    /// does the departure of all ranks.
    ///
    /// # Errors
    /// As [`Communicator::send_tagged`]; [`Error::Deadline`](crate::Error::Deadline) without a rank if no rank sends.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let mut x = Buffer::from_slice(&[comm.rank() as i32])?;
    /// if comm.rank() > 0 {
    ///     return comm.block_on(comm.send_tagged(&x, 0, 1));
    /// }
    /// for _ in 1..comm.size() {
    ///     let from = comm.block_on(comm.recv_any(&mut x, 1))?;
    ///     assert_eq!(*x.host::<i32>()?, [from as i32]);
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn recv_any<'a>(&'a self, buffer: &'a mut Buffer, tag: u32) -> Primitive<'a, usize> {
        Box::pin(async move {
            free_to_write(buffer)?;
            let whole = 0..buffer.len();
            let body = async |call: &Call<'_>| {
                let got = call.recv_any(buffer, whole)?.await?;
                call.in_group(got.peer).ok_or_else(|| {
                    let what = format!(
                        "a message under tag {tag} came from rank {}, outside of the group",
                        got.peer
                    );
                    Error::usage(what, "correct the transport")
                })
            };
            self.operate_tagged(tag, fingerprint(OperationKind::Message, buffer), body).await
        })
    }
}
