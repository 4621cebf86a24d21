//! All-reduce: everyone gets the reduction of everyone's buffer.

use super::ring::Ring;
use super::share::check_op;
use crate::{Buffer, Communicator, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// `buffer ← op over ranks of buffer`, in place, on every rank.
    ///
    /// Ring: n − 1 steps of reduce-scatter, n − 1 steps of all-gather. Bytes sent per rank: 2(n−1)/n · S (exactly, when n
    /// divides the length). Memory: none; messages are reduced where they land.
    ///
    /// Determinism: element e in chunk c is combined in the order of ranks c+1, c+2, …, c, and computed on one rank, so
    /// that results are bit-identical on all ranks and in all runs with equal `n`.
    ///
    /// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) for the mean of integers; [`Error::Mismatch`](crate::Error::Mismatch) if
    /// ranks differ in element type, length or `op`.
    pub async fn all_reduce(&self, buffer: &mut Buffer, op: ReduceOp) -> Result<()> {
        check_op(op, buffer.dtype())?;
        let fingerprint = Fingerprint {
            reduce: Some(op),
            ..Fingerprint::new(OperationKind::AllReduce, buffer.dtype(), buffer.len())
        };
        let output = buffer.write(0..buffer.len())?;
        self.operate(fingerprint, async |call| {
            if let Some(native) = call.native(None, output) {
                return native.await.map(drop);
            }
            self.before_reduce(op, buffer, 0..buffer.len())?;
            let complete = |range| self.after_reduce(op, buffer, range);
            if self.size() == 1 {
                return complete(0..buffer.len());
            }
            Ring::of(self, buffer).all_reduce(call, buffer, op, complete).await
        })
        .await
    }
}
