//! Small blocks of all ranks to all ranks, in as few steps as there can be: for messages whose number takes the time,
//! and not their bytes.
//!
//! Blocks are gathered in doubling runs (Bruck et al., "Efficient algorithms for all-to-all communications in multiport
//! message-passing systems", 1997): in round k rank r sends the first 2ᵏ blocks that it has to rank r − 2ᵏ, and receives
//! as many behind its own from rank r + 2ᵏ.

use super::share::block;
use crate::{Buffer, Call, Communicator, Land, Result};
use hexagram_physical::native::Size;

/// Largest block, in bytes, that is gathered in runs among any number of ranks: around a ring of hosts it would wait
/// longer for each message than it takes to send it seven times more.
pub(super) const SHORT: usize = 4096;

/// Returns true if blocks of so many bytes are gathered sooner in runs than around a ring.
pub(super) fn pay(bytes: usize, ranks: usize) -> bool {
    let few_bytes = bytes <= SHORT || bytes.saturating_mul(ranks) <= Size::SMALL;
    // Up to three ranks take as many steps around a ring, which needs no memory.
    ranks > 3 && few_bytes
}

impl Communicator {
    /// Returns the blocks of all ranks, this rank's own first and then those of the ranks behind it.
    pub(super) async fn gather_in_runs(&self, call: &Call<'_>, own: &Buffer) -> Result<Buffer> {
        let rank = self.rank();
        let size = self.size();
        let len = own.len();
        let blocks = own.beside(own.dtype(), size * len)?;
        blocks.write(block(len, 0))?.copy_from(&own.read_all()?)?;
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
        Ok(blocks)
    }

    /// Gathers the blocks of all ranks in the order of ranks.
    pub(super) async fn all_gather_in_runs(&self, call: &Call<'_>, own: &Buffer, all: &Buffer) -> Result<()> {
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
