//! All-gather: everyone gets everyone's buffer.

use super::ring::Ring;
use super::share::{block, check_blocks};
use crate::{Buffer, Communicator, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Gathers everyone's elements on every rank: block r of `all` ← `mine` of rank r. `all` holds n blocks of the
    /// length of `mine`.
    ///
    /// Ring, n − 1 steps. Bytes sent per rank: (n−1)/n · S, S being the size of `all`. Memory: none. Determinism: bytes
    /// are copied.
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
    pub async fn all_gather(&self, mine: &Buffer, all: &mut Buffer) -> Result<()> {
        check_blocks(mine, all, self.size())?;
        let input = mine.read_all()?;
        let output = all.write_all()?;
        self.operate(Fingerprint::new(OperationKind::AllGather, mine.dtype(), mine.len()), async |call| {
            if let Some(native) = call.native(Some(input), output) {
                return native.await.map(drop);
            }
            all.write(block(mine.len(), self.rank()))?.copy_from(&mine.read_all()?)?;
            Ring::of(self, all).all_gather(call, all).await
        })
        .await
    }
}
