//! All-gather: every rank gets the buffers of all ranks.

use super::chunk::{block, blocks, check_blocks, free_to_read, free_to_write, unequal};
use super::steps::{RingLayout, recursive_gather};
use crate::{Buffer, Communicator, Primitive};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Gathers the elements of all ranks on every rank: block r of `all` ← `mine` of rank r. `all` holds n blocks of
    /// the length of `mine`.
    ///
    /// | size B of `mine` | how | steps | time | memory |
    /// |---|---|---|---|---|
    /// | small: B ≤ 4 KiB, or n · B ≤ 64 KiB; n > 3 | doubling runs of blocks | ⌈log₂ n⌉ | ⌈log₂ n⌉ α + (n−1) B β | n · B |
    /// | large | ring | n − 1 | (n−1) α + (n−1) B β | none |
    ///
    /// α is the latency of a message, and β the time of a byte. Bytes sent per rank: (n−1) · B for both. A ring over
    /// ranks that are numbered by host enters each host once, whereas runs of blocks cross the network from every
    /// rank. Determinism: bytes are copied.
    ///
    /// Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems",
    /// 1997 (doubling runs).
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if lengths or types do not fit;
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let mine = Buffer::from_slice(&[comm.rank() as i32])?;
    /// let mut all = Buffer::zeroed(DType::I32, comm.size())?;
    /// comm.block_on(comm.all_gather(&mine, &mut all))?;
    /// assert_eq!(*all.host::<i32>()?, [0, 1, 2]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn all_gather<'a>(&'a self, mine: &'a Buffer, all: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move {
            check_blocks(mine, all, self.size())?;
            let input = mine.read_all()?;
            let output = all.write_all()?;
            self.operate(Fingerprint::new(OperationKind::AllGather, mine.dtype(), mine.len()), async |call| {
                if let Some(native) = call.native(Some(input), output) {
                    return native.await.map(drop);
                }
                if recursive_gather::pay(mine.len() * mine.dtype().size(), self.size()) {
                    return self.all_gather_in_runs(call, mine, all).await;
                }
                all.write(block(mine.len(), self.rank()))?.copy_from(&mine.read_all()?)?;
                RingLayout::of(self, all).all_gather(call, all).await
            })
            .await
        })
    }

    /// Gathers different numbers of elements from all ranks, on every rank: `all` gets `counts[r]` elements from each
    /// rank r, in the order of ranks. Counts are the same on all ranks, and may be 0.
    ///
    /// Ring, n − 1 steps. Memory: none. Determinism: bytes are copied. Bytes sent per rank: those of `all` except the
    /// block of the next rank.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if counts do not match the lengths of the buffers, or types differ;
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ, also in their counts.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// // Rank r has r elements.
    /// let rank = comm.rank();
    /// let mine = Buffer::from_slice(&vec![rank as i32; rank])?;
    /// let mut all = Buffer::zeroed(DType::I32, 3)?;
    /// comm.block_on(comm.all_gather_v(&mine, &mut all, &[0, 1, 2]))?;
    /// assert_eq!(*all.host::<i32>()?, [1, 2, 2]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn all_gather_v<'a>(
        &'a self,
        mine: &'a Buffer,
        all: &'a mut Buffer,
        counts: &'a [usize],
    ) -> Primitive<'a> {
        Box::pin(async move {
            let blocks = blocks(counts, all, self.size())?;
            let fingerprint = unequal(OperationKind::AllGatherV, (all, counts), (mine, self.rank()))?;
            free_to_read(mine)?;
            free_to_write(all)?;
            self.operate(fingerprint, async |call| {
                all.write(blocks[self.rank()].clone())?.copy_from(&mine.read_all()?)?;
                RingLayout::over(self, blocks, all.dtype()).all_gather(call, all).await
            })
            .await
        })
    }
}
