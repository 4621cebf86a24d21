//! All-reduce of a few bytes: every rank gets all contributions, in the minimum number of steps, and reduces them
//! itself.
//!
//! Every rank combines the contributions in the order of the ring, so that the result is that of the ring, bit for
//! bit.

use crate::centralized::chunk::{block, chunk};
use crate::{Buffer, Call, Communicator, ReduceOp, Result};

impl Communicator {
    /// Reduces a few bytes, `buffer ← op over ranks`, from prepared contributions.
    pub(crate) async fn exchange(&self, call: &Call<'_>, buffer: &Buffer, op: ReduceOp) -> Result<()> {
        let blocks = self.gather_in_runs(call, buffer).await?;
        (0..self.size()).try_for_each(|owner| self.combine(&blocks, buffer, owner, op))
    }

    /// Computes chunk `owner` of the result: contributions of ranks owner + 1, owner + 2, …, owner.
    fn combine(&self, blocks: &Buffer, buffer: &Buffer, owner: usize, op: ReduceOp) -> Result<()> {
        let rank = self.rank();
        let size = self.size();
        let len = buffer.len();
        let part = chunk(len, size, owner);
        if part.is_empty() {
            return Ok(());
        }
        for distance in 1..=size {
            let from = block(len, (owner + distance + size - rank) % size).start;
            let from = from + part.start..from + part.end;
            let contribution = blocks.read(from)?;
            let mut result = buffer.write(part.clone())?;
            if distance == 1 {
                result.copy_from(&contribution)?;
            } else {
                result.reduce(op, &contribution)?;
            }
        }
        Ok(())
    }
}
