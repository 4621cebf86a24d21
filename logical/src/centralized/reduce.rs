//! Reduce: one rank gets the reduction of all buffers.

use super::chunk::{chunk, free_to_write, pieces};
use crate::{Buffer, Call, Communicator, Primitive, ReceiveMode, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::ops::Range;

impl Communicator {
    /// Reduces a buffer over all ranks to rank `root`; the buffers of other ranks are unchanged.
    ///
    /// Binomial tree, ⌈log₂ n⌉ rounds for each piece of 4 MiB. Bytes sent: S by every rank except the root. Memory: a
    /// piece, on the ranks that add for others. Determinism: the tree fixes the order, counted from the root.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if the root is out of range, or the type [does not support the
    /// reduction](ReduceOp::check); [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ in root, element
    /// type, length or `op`.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, ReduceOp, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let mut x = Buffer::from_slice(&[comm.rank() as i32])?;
    /// comm.block_on(comm.reduce(&mut x, ReduceOp::Max, 0))?;
    /// assert_eq!(*x.host::<i32>()?, [[2], [1], [2]][comm.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn reduce<'a>(&'a self, buffer: &'a mut Buffer, op: ReduceOp, root: usize) -> Primitive<'a> {
        Box::pin(async move {
            self.check_rank(root)?;
            op.check(buffer.dtype())?;
            let fingerprint = Fingerprint {
                reduce: Some(op),
                root: Some(root as u32),
                ..Fingerprint::new(OperationKind::Reduce, buffer.dtype(), buffer.len())
            };
            free_to_write(buffer)?;
            self.operate(fingerprint, async |call| self.climb(call, buffer, op, root).await).await
        })
    }

    /// Sends and receives the messages of a reduce, within an operation.
    pub(super) async fn climb(
        &self,
        call: &Call<'_>,
        buffer: &Buffer,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let size = self.size();
        let len = buffer.len();
        let place = (self.rank() + size - root) % size;
        let rounds = size.next_power_of_two().ilog2() as usize;
        let pieces = pieces(len, buffer.dtype(), rounds);
        // Leaves, the odd places, send their buffer unchanged, unless it must be divided first.
        let divides = op == ReduceOp::Mean && buffer.dtype().is_half();
        let aside = place != 0 && (place.is_multiple_of(2) || divides);
        let scratch =
            if aside { Some(buffer.zeroed_same_device(buffer.dtype(), len.div_ceil(pieces))?) } else { None };
        for index in 0..pieces {
            let piece = chunk(len, pieces, index);
            let (sum, at) = match &scratch {
                Some(scratch) => {
                    scratch.write(0..piece.len())?.copy_from(&buffer.read(piece.clone())?)?;
                    (scratch, 0..piece.len())
                }
                None => (buffer, piece),
            };
            self.before_reduce(op, sum, at.clone())?;
            let tree = BinomialTree { size, root, place, first: index * rounds };
            if tree.climb(call, sum, at.clone(), op).await? {
                self.after_reduce(op, sum, at)?;
            }
        }
        Ok(())
    }
}

/// Binomial tree, from the view of one rank, for one piece.
struct BinomialTree {
    size: usize,
    root: usize,
    /// Place of this rank, counted from the root.
    place: usize,
    /// Tag of the first round.
    first: usize,
}

impl BinomialTree {
    /// Adds the sums of the ranks below, and sends the result; returns true at the root.
    async fn climb(&self, call: &Call<'_>, sum: &Buffer, at: Range<usize>, op: ReduceOp) -> Result<bool> {
        let rank = |place: usize| (place + self.root) % self.size;
        for (round, tag) in (self.first..).enumerate() {
            let reach = 1 << round;
            if reach >= self.size {
                break;
            }
            if self.place & reach != 0 {
                call.send(rank(self.place - reach), tag, sum, at)?.await?;
                return Ok(false);
            }
            if self.place + reach < self.size {
                call.recv(rank(self.place + reach), tag, sum, at.clone(), ReceiveMode::Reduce(op))?.await?;
            }
        }
        Ok(true)
    }
}
