//! Hierarchical collectives of blocks, one for each rank: all-gather and reduce-scatter.

use super::{Hierarchy, LEADER, summing};
use crate::centralized::chunk::{block, check_blocks, free_to_read, free_to_write};
use crate::{Buffer, Call, Primitive, ReceiveMode, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Hierarchy {
    /// Gathers `mine` of rank r as block r of `all`, on every rank. Memory: the blocks of the largest host, on
    /// leaders.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`](crate::Communicator::all_gather).
    pub fn all_gather<'a>(&'a self, mine: &'a Buffer, all: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move {
            check_blocks(mine, all, self.all.size())?;
            free_to_read(mine)?;
            free_to_write(all)?;
            let len = mine.len();
            let fingerprint = Fingerprint::new(OperationKind::AllGather, mine.dtype(), len);
            all.write(block(len, self.all.rank()))?.copy_from(&mine.read_all()?)?;
            let gather = async |call: &Call<'_>| self.gather_blocks(call, all, len).await;
            self.host.operate(fingerprint, gather).await?;
            if let Some(leaders) = &self.leaders {
                for (host, ranks) in self.hosts.iter().enumerate() {
                    let blocks = all.zeroed_same_device(all.dtype(), ranks.len() * len)?;
                    let place = |at: usize| (block(len, ranks[at]), block(len, at));
                    for (theirs, packed) in (0..ranks.len()).map(place).filter(|_| host == self.mine) {
                        blocks.write(packed)?.copy_from(&all.read(theirs)?)?;
                    }
                    leaders
                        .operate(fingerprint, async |call| leaders.spread(call, &blocks, host).await)
                        .await?;
                    for (theirs, packed) in (0..ranks.len()).map(place).filter(|_| host != self.mine) {
                        all.write(theirs)?.copy_from(&blocks.read(packed)?)?;
                    }
                }
            }
            self.host.operate(fingerprint, async |call| self.host.spread(call, all, LEADER).await).await
        })
    }

    /// Reduces block r of `all` over all ranks to `mine` of rank r; `all` is unchanged. Memory: the size of `all`.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    pub fn reduce_scatter<'a>(
        &'a self,
        all: &'a Buffer,
        mine: &'a mut Buffer,
        op: ReduceOp,
    ) -> Primitive<'a> {
        Box::pin(async move {
            check_blocks(mine, all, self.all.size())?;
            op.check(all.dtype())?;
            free_to_read(all)?;
            free_to_write(mine)?;
            let fingerprint = Fingerprint {
                reduce: Some(op),
                ..Fingerprint::new(OperationKind::ReduceScatter, all.dtype(), all.len())
            };
            let sum = all.copied()?;
            self.reduce_to_leaders(fingerprint, &sum, op).await?;
            if let Some(leaders) = &self.leaders {
                let all_reduce =
                    async |call: &Call<'_>| leaders.reduce_everywhere(call, &sum, summing(op)).await;
                leaders.operate(fingerprint, all_reduce).await?;
                self.all.after_reduce(op, &sum, 0..sum.len())?;
            }
            let scatter = async |call: &Call<'_>| self.scatter_blocks(call, &sum, mine).await;
            self.host.operate(fingerprint, scatter).await
        })
    }

    /// Gathers the blocks of the ranks of a host, in their places, on its leader.
    async fn gather_blocks(&self, call: &Call<'_>, all: &Buffer, len: usize) -> Result<()> {
        if self.leaders.is_none() {
            return call.send(LEADER, 0, all, block(len, self.all.rank()))?.await.map(drop);
        }
        let others = self.hosts[self.mine].iter().enumerate().skip(1);
        let receives: Result<Vec<_>> = others
            .map(|(place, rank)| call.recv(place, 0, all, block(len, *rank), ReceiveMode::Copy))
            .collect();
        for receive in receives? {
            receive.await?;
        }
        Ok(())
    }

    /// Scatters the block of each rank in `sum` from the leader of its host.
    async fn scatter_blocks(&self, call: &Call<'_>, sum: &Buffer, mine: &Buffer) -> Result<()> {
        let len = mine.len();
        if self.leaders.is_none() {
            return call.recv(LEADER, 0, mine, 0..len, ReceiveMode::Copy)?.await.map(drop);
        }
        mine.write_all()?.copy_from(&sum.read(block(len, self.all.rank()))?)?;
        let others = self.hosts[self.mine].iter().enumerate().skip(1);
        let sends: Result<Vec<_>> =
            others.map(|(place, rank)| call.send(place, 0, sum, block(len, *rank))).collect();
        for send in sends? {
            send.await?;
        }
        Ok(())
    }
}
