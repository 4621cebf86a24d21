//! Gossip among hosts: each takes a rank's place, with the mean of its ranks. For clusters whose hosts are joined by
//! something slower than their memory.
//!
//! ```text
//! all-reduce (mean) on each host      gossip of leaders      broadcast on each host
//! ```
//!
//! Every host counts as much as another, however many ranks it has, as a mixing matrix needs it. Only leaders send
//! between hosts, and only they remember anything of encoded messages. Means over ranks are kept where hosts have equally
//! many.

use super::encoded::GossipOptions;
use super::schedule::Schedule;
use crate::encoding::Encoding;
use crate::{Buffer, Communicator, Hierarchy, ReduceOp, Result};

impl Hierarchy {
    /// Mixes the hosts' means as [`Communicator::gossip`] mixes ranks.
    ///
    /// # Errors
    /// As [`Communicator::gossip`].
    pub async fn gossip(&self, buffer: &mut Buffer, schedule: &dyn Schedule, step: u64) -> Result<()> {
        self.between_hosts(buffer, async |comm, x| comm.gossip(x, schedule, step).await).await
    }

    /// Mixes the hosts' means as [`Communicator::gossip_encoded`] mixes ranks.
    ///
    /// # Errors
    /// As [`Communicator::gossip_encoded`].
    pub async fn gossip_encoded(
        &self,
        buffer: &mut Buffer,
        schedule: &dyn Schedule,
        step: u64,
        encoding: &mut Encoding,
        options: GossipOptions,
    ) -> Result<()> {
        let mix = async |comm: &Communicator, x: &mut Buffer| {
            comm.gossip_encoded(x, schedule, step, encoding, options).await
        };
        self.between_hosts(buffer, mix).await
    }

    /// Lets what an encoding knows of other hosts begin where the hosts' means are; see
    /// [`Communicator::gossip_synchronize`].
    ///
    /// # Errors
    /// As [`Communicator::gossip_synchronize`].
    pub async fn gossip_synchronize(
        &self,
        buffer: &Buffer,
        schedule: &dyn Schedule,
        step: u64,
        encoding: &mut Encoding,
    ) -> Result<()> {
        let begin = async |comm: &Communicator, x: &mut Buffer| {
            comm.gossip_synchronize(x, schedule, step, encoding).await
        };
        self.between_hosts(&mut buffer.copied()?, begin).await
    }

    /// Mixes the hosts' means as [`Communicator::push_sum`] mixes ranks. The ranks of a host have one weight.
    ///
    /// # Errors
    /// As [`Communicator::push_sum`].
    pub async fn push_sum(
        &self,
        buffer: &mut Buffer,
        weight: &mut f64,
        schedule: &dyn Schedule,
        step: u64,
    ) -> Result<()> {
        let push = async |comm: &Communicator, x: &mut Buffer| comm.push_sum(x, weight, schedule, step).await;
        self.between_hosts(buffer, push).await?;
        let mut of_host = Buffer::from_slice(&[*weight])?;
        self.host().broadcast(&mut of_host, 0).await?;
        *weight = of_host.host::<f64>()?[0];
        Ok(())
    }

    async fn between_hosts(
        &self,
        buffer: &mut Buffer,
        mix: impl AsyncFnOnce(&Communicator, &mut Buffer) -> Result<()>,
    ) -> Result<()> {
        self.host().all_reduce(buffer, ReduceOp::Mean).await?;
        self.lead(async |leaders| mix(leaders, buffer).await).await?;
        self.host().broadcast(buffer, 0).await
    }
}
