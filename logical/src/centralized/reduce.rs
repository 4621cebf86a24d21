//! Reduce: one rank gets the reduction of everyone's buffer.

use super::share::check_op;
use crate::{Buffer, Communicator, Land, ReduceOp, Result};
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
        let call = self.begin(fingerprint)?;
        let (size, whole) = (self.size(), 0..buffer.len());
        let place = (self.rank() + size - root) % size;
        let at = |place: usize| (place + root) % size;
        let mut scratch = None;
        if place != 0 {
            let copy = self.scratch(buffer.dtype(), buffer.len())?;
            self.copy(buffer, whole.clone(), &copy, whole.clone())?;
            scratch = Some(copy);
        }
        let sum = scratch.as_ref().unwrap_or(buffer);
        self.before_reduce(op, sum, whole.clone())?;
        let land = Land::Reduce(sum.dtype(), op);
        for round in 0.. {
            let reach = 1 << round;
            if reach >= size {
                break;
            }
            if place & reach != 0 {
                call.send(at(place - reach), round, sum, whole.clone())?.await?;
                return Ok(());
            }
            if place + reach < size {
                call.recv(at(place + reach), round, sum, whole.clone(), land)?.await?;
            }
        }
        self.after_reduce(op, sum, whole)
    }
}
