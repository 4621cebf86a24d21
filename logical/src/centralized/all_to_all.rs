//! All-to-all: every rank sends a different block to every rank.

use super::chunk::{blocks, check_dtypes, free_to_read, free_to_write};
use crate::{Buffer, Communicator, Error, Primitive, ReceiveMode};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Sends a different block to each rank: block s of `received` on rank r ← block r of `sent` on rank s. Both hold
    /// n blocks of equal length.
    ///
    /// n − 1 steps; in step k every rank sends to the rank at distance k. Bytes sent per rank: (n−1)/n · S. Memory:
    /// none. Determinism: bytes are copied.
    ///
    /// # Errors
    /// [`Error::Usage`] if lengths or types do not match; [`Error::Mismatch`] if ranks differ.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let rank = comm.rank() as i32;
    /// let sent = Buffer::from_slice(&[10 * rank, 10 * rank + 1, 10 * rank + 2])?;
    /// let mut received = Buffer::zeroed(DType::I32, 3)?;
    /// comm.block_on(comm.all_to_all(&sent, &mut received))?;
    /// assert_eq!(*received.host::<i32>()?, [rank, rank + 10, rank + 20]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn all_to_all<'a>(&'a self, sent: &'a Buffer, received: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move {
            let len = sent.len() / self.size();
            if len * self.size() != sent.len() {
                let what = format!("{} elements are not {} equal blocks", sent.len(), self.size());
                return Err(Error::usage(what, "use a multiple of the number of ranks, or all_to_all_v"));
            }
            let counts = vec![len; self.size()];
            self.all_to_all_v(sent, &counts, received, &counts).await
        })
    }

    /// Sends a different number of elements to each rank: `sent` holds `send_counts[r]` elements for each rank r, in
    /// the order of ranks, and `received` gets `recv_counts[s]` elements from each rank s.
    ///
    /// Steps, memory and determinism as [`Communicator::all_to_all`]. Bytes sent: those of `sent`, except the
    /// elements for this rank.
    ///
    /// # Errors
    /// [`Error::Usage`] if counts do not add up to the lengths of the buffers, or types differ; [`Error::Mismatch`]
    /// if the count of a sender differs from that of its receiver.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// // Every rank sends no element to rank 0, one to rank 1, and two to rank 2.
    /// let rank = comm.rank();
    /// let sent = Buffer::from_slice(&[rank as i32; 3])?;
    /// let mut received = Buffer::zeroed(DType::I32, 3 * rank)?;
    /// comm.block_on(comm.all_to_all_v(&sent, &[0, 1, 2], &mut received, &[rank; 3]))?;
    /// let expected: &[i32] = [&[] as &[_], &[0, 1, 2], &[0, 0, 1, 1, 2, 2]][rank];
    /// assert_eq!(*received.host::<i32>()?, *expected);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn all_to_all_v<'a>(
        &'a self,
        sent: &'a Buffer,
        send_counts: &'a [usize],
        received: &'a mut Buffer,
        recv_counts: &'a [usize],
    ) -> Primitive<'a> {
        Box::pin(async move {
            check_dtypes(sent, received)?;
            let outgoing = blocks(send_counts, sent, self.size())?;
            let incoming = blocks(recv_counts, received, self.size())?;
            let rank = self.rank();
            let size = self.size();
            if outgoing[rank].len() != incoming[rank].len() {
                let what = format!(
                    "rank {rank} sends itself {} elements and expects {} of itself",
                    outgoing[rank].len(),
                    incoming[rank].len()
                );
                return Err(Error::usage(what, "make the two counts equal"));
            }
            free_to_read(sent)?;
            free_to_write(received)?;
            self.operate(Fingerprint::new(OperationKind::AllToAll, sent.dtype(), 0), async |call| {
                let own = incoming[rank].clone();
                received.write(own)?.copy_from(&sent.read(outgoing[rank].clone())?)?;
                for step in 1..size {
                    let to = (rank + step) % size;
                    let from = (rank + size - step) % size;
                    let out = outgoing[to].clone();
                    let into = incoming[from].clone();
                    // Counts, and so fingerprints, differ by pair.
                    let send = call.counting(out.len()).send(to, 0, sent, out)?;
                    call.counting(into.len()).recv(from, 0, received, into, ReceiveMode::Copy)?.await?;
                    send.await?;
                }
                Ok(())
            })
            .await
        })
    }
}
