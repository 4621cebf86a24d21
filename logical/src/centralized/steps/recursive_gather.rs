//! Small blocks of all ranks to all ranks, in the minimum number of steps: for messages whose number determines the
//! time, not their bytes.
//!
//! Blocks are gathered in doubling runs (Bruck et al., "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", 1997): in round k rank r sends its first 2ᵏ blocks to rank r − 2ᵏ, and
//! receives the same number from rank r + 2ᵏ behind them.

use crate::centralized::chunk::block;
use crate::{Buffer, Call, Communicator, ReceiveMode, Result};
use hexagram_physical::native::Size;

/// Largest block, in bytes, that is gathered in runs for any number of ranks. A ring over hosts would wait longer for
/// each message than runs need to send it seven more times.
pub(crate) const SHORT: usize = 4096;

/// Returns true if runs gather blocks of this size faster than a ring.
pub(crate) fn pay(bytes: usize, ranks: usize) -> bool {
    let few_bytes = bytes <= SHORT || bytes.saturating_mul(ranks) <= Size::SMALL;
    // For up to three ranks a ring has the same number of steps, and needs no memory.
    ranks > 3 && few_bytes
}

impl Communicator {
    /// Returns the blocks of all ranks, that of this rank first, followed by those of the next ranks.
    pub(super) async fn gather_in_runs(&self, call: &Call<'_>, own: &Buffer) -> Result<Buffer> {
        let rank = self.rank();
        let size = self.size();
        let len = own.len();
        let blocks = own.zeroed_same_device(own.dtype(), size * len)?;
        blocks.write(block(len, 0))?.copy_from(&own.read_all()?)?;
        for round in 0.. {
            let have = 1 << round;
            if have >= size {
                break;
            }
            let count = have.min(size - have);
            let send = call.send((rank + size - have) % size, round, &blocks, 0..count * len)?;
            let behind = have * len..(have + count) * len;
            call.recv((rank + have) % size, round, &blocks, behind, ReceiveMode::Copy)?.await?;
            send.await?;
        }
        Ok(blocks)
    }

    /// Gathers the blocks of all ranks in the order of ranks.
    pub(crate) async fn all_gather_in_runs(&self, call: &Call<'_>, own: &Buffer, all: &Buffer) -> Result<()> {
        let blocks = self.gather_in_runs(call, own).await?;
        let before = self.rank() * own.len();
        let here = all.len() - before;
        all.write(before..all.len())?.copy_from(&blocks.read(0..here)?)?;
        all.write(0..before)?.copy_from(&blocks.read(here..all.len())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_pay_for_short_blocks_among_many_and_longer_ones_among_few() {
        assert!(pay(SHORT, 1000) && !pay(SHORT + 1, 1000));
        assert!(pay(Size::SMALL / 4, 4) && !pay(Size::SMALL / 4 + 1, 4));
        assert!(!pay(1, 3), "a ring has as few steps");
    }
}
