//! Reduce-scatter: everyone gets its block of the reduction of everyone's buffer.

use super::ring::Ring;
use super::share::{block, check_blocks, check_op, chunk, pieces};
use crate::{Buffer, Communicator, Land, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

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
            let mut sending = scratch()?;
            let mut arriving = scratch()?;
            for index in 0..pieces {
                let piece = chunk(len, pieces, index);
                let place = 0..piece.len();
                let contribute = |distance: usize, to: &Buffer| {
                    let block = block(len, ring.behind(distance)).start;
                    let from = all.read(block + piece.start..block + piece.end)?;
                    to.write(place.clone())?.copy_from(&from)?;
                    self.before_reduce(op, to, place.clone())
                };
                // A partial result arrives on top of this rank's contribution in one scratch while the other is sent
                // on.
                contribute(1, &sending)?;
                for step in 0..ring.steps() {
                    contribute(step + 2, &arriving)?;
                    let tag = index * ring.steps() + step;
                    let send = call.send(ring.next(), tag, &sending, place.clone())?;
                    call.recv(ring.previous(), tag, &arriving, place.clone(), Land::Reduce(op))?.await?;
                    send.await?;
                    std::mem::swap(&mut sending, &mut arriving);
                }
                // With one rank, behind(1) is the rank itself.
                self.after_reduce(op, &sending, place.clone())?;
                mine.write(piece.clone())?.copy_from(&sending.read(place.clone())?)?;
            }
            Ok(())
        })
        .await
    }
}
