//! Scatter: every rank gets its block of the buffer of one rank.

use super::chunk::{block, check_blocks, free_to_read, free_to_write};
use crate::{Buffer, Call, Communicator, Error, Primitive, ReceiveMode, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Scatters the blocks of one rank: `mine` of rank r ← block r of `all` on rank `root`. Only the root passes
    /// `all`, n blocks of the length of `mine`.
    ///
    /// One message from the root to every other rank. Bytes sent: (n − 1) times the size of `mine`, by the root.
    /// Memory: none. Determinism: bytes are copied.
    ///
    /// # Errors
    /// As [`Communicator::gather`].
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let all = Buffer::from_slice(&[10, 11, 12])?;
    /// let mut mine = Buffer::zeroed(DType::I32, 1)?;
    /// let at_root = (comm.rank() == 1).then_some(&all);
    /// comm.block_on(comm.scatter(at_root, &mut mine, 1))?;
    /// assert_eq!(*mine.host::<i32>()?, [10 + comm.rank() as i32]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn scatter<'a>(
        &'a self,
        all: Option<&'a Buffer>,
        mine: &'a mut Buffer,
        root: usize,
    ) -> Primitive<'a> {
        Box::pin(async move {
            self.check_rank(root)?;
            let fingerprint = Fingerprint {
                root: Some(root as u32),
                ..Fingerprint::new(OperationKind::Scatter, mine.dtype(), mine.len())
            };
            let len = mine.len();
            free_to_write(mine)?;
            if self.rank() != root {
                let body = async |call: &Call<'_>| {
                    call.recv(root, 0, mine, 0..len, ReceiveMode::Copy)?.await.map(drop)
                };
                return self.operate(fingerprint, body).await;
            }
            let all =
                all.ok_or_else(|| Error::usage("the root of a scatter passed no buffer", "pass Some(all)"))?;
            check_blocks(mine, all, self.size())?;
            free_to_read(all)?;
            self.operate(fingerprint, async |call| {
                mine.write_all()?.copy_from(&all.read(block(len, root))?)?;
                let others = (0..self.size()).filter(|rank| *rank != root);
                let sends: Result<Vec<_>> =
                    others.map(|rank| call.send(rank, 0, all, block(len, rank))).collect();
                for send in sends? {
                    send.await?;
                }
                Ok(())
            })
            .await
        })
    }
}
