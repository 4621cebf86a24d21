//! Reduce-scatter: everyone gets its block of the reduction of everyone's buffer.

use super::ring::Ring;
use super::share::{block, check_blocks, check_op};
use crate::{Buffer, Communicator, Land, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// `mine ← op over ranks of block r of all`, on rank r. `all` holds n blocks of the length of `mine` and is not
    /// changed.
    ///
    /// Ring, n − 1 steps. Bytes sent per rank: (n−1)/n · S. Memory: two blocks. Determinism: as
    /// [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if lengths or types do not fit, or for the mean of integers;
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ.
    pub async fn reduce_scatter(&self, all: &Buffer, mine: &mut Buffer, op: ReduceOp) -> Result<()> {
        check_blocks(mine, all, self.size())?;
        check_op(op, all.dtype())?;
        let len = mine.len();
        let fingerprint = Fingerprint {
            reduce: Some(op),
            ..Fingerprint::new(OperationKind::ReduceScatter, all.dtype(), all.len())
        };
        let input = all.read(0..all.len())?;
        let output = mine.write(0..mine.len())?;
        self.operate(fingerprint, async |call| {
            if let Some(native) = call.native(Some(input), output) {
                return native.await.map(drop);
            }
            let (ring, land) = (Ring::of(self, all), Land::Reduce(op));
            // A partial result arrives on top of this rank's contribution in one scratch while the other is sent on.
            let mut sending = self.scratch(all.dtype(), len)?;
            let mut arriving = self.scratch(all.dtype(), len)?;
            self.contribute(all, ring.behind(1), &sending, op)?;
            for step in 0..ring.steps() {
                self.contribute(all, ring.behind(step + 2), &arriving, op)?;
                let send = call.send(ring.next(), step, &sending, 0..len)?;
                call.recv(ring.previous(), step, &arriving, 0..len, land)?.await?;
                send.await?;
                std::mem::swap(&mut sending, &mut arriving);
            }
            // With one rank, behind(1) is the rank itself.
            self.after_reduce(op, &sending, 0..len)?;
            self.copy(&sending, 0..len, mine, 0..len)
        })
        .await
    }

    fn contribute(&self, all: &Buffer, index: usize, to: &Buffer, op: ReduceOp) -> Result<()> {
        self.copy(all, block(to.len(), index), to, 0..to.len())?;
        self.before_reduce(op, to, 0..to.len())
    }
}
