//! All-reduce of a few bytes: everyone gets all contributions, in as few steps as there can be, and reduces them
//! itself.
//!
//! The contributions are gathered in doubling runs (Bruck et al., "Efficient algorithms for all-to-all communications
//! in multiport message-passing systems", 1997): in round k rank r sends the first 2ᵏ blocks that it has to rank r −
//! 2ᵏ, and receives as many behind its own from rank r + 2ᵏ. Everyone combines them in the ring's order, so that the
//! result is the ring's, bit for bit.

use super::share::{block, chunk};
use crate::{Buffer, Call, Communicator, Land, ReduceOp, Result};

impl Communicator {
    /// Reduces a few bytes, `buffer ← op over ranks`, from contributions that are prepared already.
    pub(super) async fn exchange(&self, call: &Call<'_>, buffer: &Buffer, op: ReduceOp) -> Result<()> {
        let rank = self.rank();
        let size = self.size();
        let len = buffer.len();
        // Block i is that of rank r + i.
        let blocks = buffer.beside(buffer.dtype(), size * len)?;
        blocks.write(0..len)?.copy_from(&buffer.read_all()?)?;
        for round in 0.. {
            let have = 1 << round;
            if have >= size {
                break;
            }
            let count = have.min(size - have);
            let send = call.send((rank + size - have) % size, round, &blocks, 0..count * len)?;
            let behind = have * len..(have + count) * len;
            call.recv((rank + have) % size, round, &blocks, behind, Land::Copy)?.await?;
            send.await?;
        }
        (0..size).try_for_each(|owner| self.combine(&blocks, buffer, owner, op))
    }

    /// Forms chunk `owner` of the result: contributions of ranks owner + 1, owner + 2, …, owner.
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
