//! Reduce-scatter: everyone gets its block of the reduction of everyone's buffer.

use super::ring::Ring;
use super::share::{block, check_blocks, check_op, chunk, pieces};
use crate::{Buffer, Call, Communicator, Land, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::ops::Range;

impl Communicator {
    /// Reduces a block for each rank: `mine ← op over ranks of block r of all`, on rank r. `all` holds n blocks of
    /// the length of `mine` and is not changed.
    ///
    /// Ring, n − 1 steps for each piece of 4 MiB of a block. Bytes sent per rank: (n−1)/n · S. Memory: two pieces.
    /// Determinism: as [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if lengths or types do not fit, or for the mean of integers;
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ.
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
    pub async fn reduce_scatter(&self, all: &Buffer, mine: &mut Buffer, op: ReduceOp) -> Result<()> {
        check_blocks(mine, all, self.size())?;
        check_op(op, all.dtype())?;
        let len = mine.len();
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
            let ring = Ring::of(self, all);
            let pieces = pieces(len, all.dtype(), ring.steps());
            let scratch = || all.beside(all.dtype(), len.div_ceil(pieces));
            let mut scratches = (scratch()?, scratch()?);
            for index in 0..pieces {
                let range = chunk(len, pieces, index);
                let piece = Piece { comm: self, call, ring: &ring, all, len, index, range, op };
                piece.reduce(&mut scratches, mine).await?;
            }
            Ok(())
        })
        .await
    }
}

/// Piece of every block, on its way around the ring.
struct Piece<'a> {
    comm: &'a Communicator,
    call: &'a Call<'a>,
    ring: &'a Ring,
    all: &'a Buffer,
    /// Length of a block.
    len: usize,
    index: usize,
    /// Place of the piece in its block.
    range: Range<usize>,
    op: ReduceOp,
}

impl Piece<'_> {
    /// Reduces the piece of this rank's block into `mine`. A partial result arrives on top of this rank's contribution
    /// in one scratch while the other is sent on.
    async fn reduce(&self, (sending, arriving): &mut (Buffer, Buffer), mine: &Buffer) -> Result<()> {
        let steps = self.ring.steps();
        let place = 0..self.range.len();
        self.contribute(1, sending)?;
        for step in 0..steps {
            self.contribute(step + 2, arriving)?;
            let tag = self.index * steps + step;
            let send = self.call.send(self.ring.next(), tag, sending, place.clone())?;
            let land = Land::Reduce(self.op);
            self.call.recv(self.ring.previous(), tag, arriving, place.clone(), land)?.await?;
            send.await?;
            std::mem::swap(sending, arriving);
        }
        // With one rank, behind(1) is the rank itself.
        self.comm.after_reduce(self.op, sending, place.clone())?;
        mine.write(self.range.clone())?.copy_from(&sending.read(place)?)
    }

    /// Copies what this rank has of the block of the rank `distance` places behind it.
    fn contribute(&self, distance: usize, to: &Buffer) -> Result<()> {
        let place = 0..self.range.len();
        let block = block(self.len, self.ring.behind(distance)).start;
        let from = self.all.read(block + self.range.start..block + self.range.end)?;
        to.write(place.clone())?.copy_from(&from)?;
        self.comm.before_reduce(self.op, to, place)
    }
}
