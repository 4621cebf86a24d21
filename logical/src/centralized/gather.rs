//! Gather: one rank gets the buffers of all ranks.

use super::chunk::{block, check_blocks, free_to_read, free_to_write};
use crate::{Buffer, Call, Communicator, Error, Primitive, ReceiveMode, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Gathers the elements of all ranks on rank `root`: block r of `all` ← `mine` of rank r. Only the root passes
    /// `all`, n blocks of the length of `mine`.
    ///
    /// One message to the root from every other rank. Bytes sent: the size of `mine`, by all ranks except the root.
    /// Memory: none. Determinism: bytes are copied.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if the root passes no buffer, or lengths or types do not match;
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let mine = Buffer::from_slice(&[comm.rank() as i32])?;
    /// let mut all = Buffer::zeroed(DType::I32, 3)?;
    /// let at_root = (comm.rank() == 1).then_some(&mut all);
    /// comm.block_on(comm.gather(&mine, at_root, 1))?;
    /// if comm.rank() == 1 {
    ///     assert_eq!(*all.host::<i32>()?, [0, 1, 2]);
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn gather<'a>(&'a self, mine: &'a Buffer, all: Option<&'a mut Buffer>, root: usize) -> Primitive<'a> {
        Box::pin(async move {
            self.check_rank(root)?;
            let fingerprint = Fingerprint {
                root: Some(root as u32),
                ..Fingerprint::new(OperationKind::Gather, mine.dtype(), mine.len())
            };
            let len = mine.len();
            free_to_read(mine)?;
            if self.rank() != root {
                let body = async |call: &Call<'_>| call.send(root, 0, mine, 0..len)?.await.map(drop);
                return self.operate(fingerprint, body).await;
            }
            let all =
                all.ok_or_else(|| Error::usage("the root of a gather passed no buffer", "pass Some(all)"))?;
            check_blocks(mine, all, self.size())?;
            free_to_write(all)?;
            self.operate(fingerprint, async |call| {
                all.write(block(len, root))?.copy_from(&mine.read_all()?)?;
                let others = (0..self.size()).filter(|rank| *rank != root);
                let receives: Result<Vec<_>> =
                    others.map(|rank| call.recv(rank, 0, all, block(len, rank), ReceiveMode::Copy)).collect();
                for receive in receives? {
                    receive.await?;
                }
                Ok(())
            })
            .await
        })
    }
}
