//! Reduce: one rank gets the reduction of everyone's buffer.

use super::share::{check_op, free_to_write};
use crate::{Buffer, Call, Communicator, Land, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// `buffer of rank root ← op over ranks of buffer`; the others' buffers are not changed.
    ///
    /// Binomial tree, ⌈log₂ n⌉ rounds. Bytes sent: S by every rank but the root. Memory: S, on the ranks that add on
    /// behalf of others. Determinism: the tree fixes the order, counted from the root.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if there is no such root, or for the mean of integers;
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ in root, element type, length or `op`.
    pub async fn reduce(&self, buffer: &mut Buffer, op: ReduceOp, root: usize) -> Result<()> {
        self.check_rank(root)?;
        check_op(op, buffer.dtype())?;
        let fingerprint = Fingerprint {
            reduce: Some(op),
            root: Some(root as u32),
            ..Fingerprint::new(OperationKind::Reduce, buffer.dtype(), buffer.len())
        };
        free_to_write(buffer)?;
        self.operate(fingerprint, async |call| self.climb(call, buffer, op, root).await).await
    }

    async fn climb(&self, call: &Call<'_>, buffer: &Buffer, op: ReduceOp, root: usize) -> Result<()> {
        let (size, whole) = (self.size(), 0..buffer.len());
        let place = (self.rank() + size - root) % size;
        let at = |place: usize| (place + root) % size;
        // Leaves, the odd places, send their buffer as it is, unless it has to be divided first.
        let divides = op == ReduceOp::Mean && buffer.dtype().is_half();
        let scratch = if place != 0 && (place.is_multiple_of(2) || divides) {
            let copy = self.scratch(buffer.dtype(), buffer.len())?;
            self.copy(buffer, whole.clone(), &copy, whole.clone())?;
            Some(copy)
        } else {
            None
        };
        let sum = scratch.as_ref().unwrap_or(buffer);
        self.before_reduce(op, sum, whole.clone())?;
        for round in 0.. {
            let reach = 1 << round;
            if reach >= size {
                break;
            }
            if place & reach != 0 {
                return call.send(at(place - reach), round, sum, whole)?.await.map(drop);
            }
            if place + reach < size {
                call.recv(at(place + reach), round, sum, whole.clone(), Land::Reduce(op))?.await?;
            }
        }
        self.after_reduce(op, sum, whole)
    }
}
