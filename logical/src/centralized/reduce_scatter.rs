//! Reduce-scatter: every rank gets its block of the reduction of all buffers.

use super::chunk::{block, blocks, check_blocks, chunk, free_to_read, free_to_write, pieces, unequal};
use super::steps::RingLayout;
use crate::{Buffer, Call, Communicator, Primitive, ReceiveMode, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::ops::Range;

impl Communicator {
    /// Reduces a block for each rank: `mine ← op over ranks of block r of all`, on rank r. `all` holds n blocks of
    /// the length of `mine` and is unchanged.
    ///
    /// Ring, n − 1 steps for each piece of 4 MiB of a block. Bytes sent per rank: (n−1)/n · S. Memory: two pieces.
    /// Determinism: as [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if lengths or types do not match, or the type [does not support the
    /// reduction](ReduceOp::check); [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, ReduceOp, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let all = Buffer::from_slice(&[0, 10, 20])?;
    /// let mut mine = Buffer::zeroed(DType::I32, 1)?;
    /// comm.block_on(comm.reduce_scatter(&all, &mut mine, ReduceOp::Sum))?;
    /// assert_eq!(*mine.host::<i32>()?, [30 * comm.rank() as i32]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn reduce_scatter<'a>(
        &'a self,
        all: &'a Buffer,
        mine: &'a mut Buffer,
        op: ReduceOp,
    ) -> Primitive<'a> {
        Box::pin(async move {
            check_blocks(mine, all, self.size())?;
            op.check(all.dtype())?;
            let fingerprint = Fingerprint {
                reduce: Some(op),
                ..Fingerprint::new(OperationKind::ReduceScatter, all.dtype(), all.len())
            };
            let input = all.read_all()?;
            let output = mine.write_all()?;
            self.operate(fingerprint, async |call| {
                if let Some(native) = call.native(Some(input), output) {
                    return native.await.map(drop);
                }
                let blocks = (0..self.size()).map(|rank| block(mine.len(), rank)).collect();
                self.reduce_blocks(call, RingLayout::over(self, blocks, all.dtype()), (all, mine), op).await
            })
            .await
        })
    }

    /// Reduces blocks of different lengths, one for each rank. `all` holds `counts[r]` elements for each rank r, in
    /// the order of ranks, and is unchanged; `mine` gets the reduction of the block of this rank. Counts are the same
    /// on all ranks, and may be 0.
    ///
    /// Steps and determinism as [`Communicator::reduce_scatter`]. Bytes sent per rank: those of `all` except its own
    /// block. Memory: two pieces of the longest block.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if counts do not match the lengths of the buffers, types differ, or the
    /// type [does not support the reduction](ReduceOp::check); [`Error::Mismatch`](crate::Error::Mismatch) if ranks
    /// differ, also in their counts.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, ReduceOp, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// // Rank r gets r elements.
    /// let all = Buffer::from_slice(&[10, 20, 21])?;
    /// let mut mine = Buffer::zeroed(DType::I32, comm.rank())?;
    /// comm.block_on(comm.reduce_scatter_v(&all, &[0, 1, 2], &mut mine, ReduceOp::Sum))?;
    /// let expected: &[i32] = [&[] as &[_], &[30], &[60, 63]][comm.rank()];
    /// assert_eq!(*mine.host::<i32>()?, *expected);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn reduce_scatter_v<'a>(
        &'a self,
        all: &'a Buffer,
        counts: &'a [usize],
        mine: &'a mut Buffer,
        op: ReduceOp,
    ) -> Primitive<'a> {
        Box::pin(async move {
            op.check(all.dtype())?;
            let blocks = blocks(counts, all, self.size())?;
            let fingerprint = unequal(OperationKind::ReduceScatterV, (all, counts), (mine, self.rank()))?;
            let fingerprint = Fingerprint { reduce: Some(op), ..fingerprint };
            free_to_read(all)?;
            free_to_write(mine)?;
            self.operate(fingerprint, async |call| {
                self.reduce_blocks(call, RingLayout::over(self, blocks, all.dtype()), (all, mine), op).await
            })
            .await
        })
    }

    /// Sends and receives the messages of a reduce-scatter of blocks, within an operation.
    async fn reduce_blocks(
        &self,
        call: &Call<'_>,
        ring: RingLayout,
        (all, mine): (&Buffer, &Buffer),
        op: ReduceOp,
    ) -> Result<()> {
        let count = pieces(ring.longest(), all.dtype(), ring.steps());
        let scratch = || all.zeroed_same_device(all.dtype(), ring.longest().div_ceil(count));
        let mut scratches = (scratch()?, scratch()?);
        for index in 0..count {
            let piece = BlockPiece { comm: self, call, ring: &ring, all, index, count, op };
            piece.reduce(&mut scratches, mine).await?;
        }
        Ok(())
    }
}

/// Piece of every block that travels around the ring.
struct BlockPiece<'a> {
    comm: &'a Communicator,
    call: &'a Call<'a>,
    ring: &'a RingLayout,
    all: &'a Buffer,
    index: usize,
    /// Number of pieces of every block.
    count: usize,
    op: ReduceOp,
}

impl BlockPiece<'_> {
    /// Reduces the piece of the block of this rank into `mine`. A partial result arrives on top of the contribution
    /// of this rank in one scratch buffer while the other is sent.
    async fn reduce(&self, (sending, arriving): &mut (Buffer, Buffer), mine: &Buffer) -> Result<()> {
        let steps = self.ring.steps();
        self.contribute(1, sending)?;
        for step in 0..steps {
            self.contribute(step + 2, arriving)?;
            let tag = self.index * steps + step;
            let send = self.call.send(self.ring.next(), tag, sending, 0..self.place(step + 1).len())?;
            let into = 0..self.place(step + 2).len();
            self.call.recv(self.ring.previous(), tag, arriving, into, ReceiveMode::Reduce(self.op))?.await?;
            send.await?;
            std::mem::swap(sending, arriving);
        }
        // With one rank, the block one place behind is its own.
        let place = chunk(mine.len(), self.count, self.index);
        self.comm.after_reduce(self.op, sending, 0..place.len())?;
        mine.write(place.clone())?.copy_from(&sending.read(0..place.len())?)
    }

    /// Copies the contribution of this rank to the block `distance` places behind its own.
    fn contribute(&self, distance: usize, to: &Buffer) -> Result<()> {
        let from = self.place(distance);
        let place = 0..from.len();
        to.write(place.clone())?.copy_from(&self.all.read(from)?)?;
        self.comm.before_reduce(self.op, to, place)
    }

    /// Returns the place of the piece of the block `distance` places behind that of this rank.
    fn place(&self, distance: usize) -> Range<usize> {
        let block = self.ring.chunk(distance);
        let piece = chunk(block.len(), self.count, self.index);
        block.start + piece.start..block.start + piece.end
    }
}
