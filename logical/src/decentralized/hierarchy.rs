//! Gossip among hosts: each acts as one rank, with the mean of its ranks. For clusters whose network is slower than
//! the memory of hosts.
//!
//! ```text
//! all-reduce (mean) on each host      gossip of leaders      broadcast on each host
//! ```
//!
//! The weight of a host is its number of ranks: the matrix of a schedule for hosts is weighted by their ranks
//! (`unequal` has the formulas), so that the mean over ranks is preserved with any schedule and any feedback. If all
//! hosts have the same number of ranks, weights are those of the schedule. Only leaders send between hosts, the same
//! bytes as ranks in their place, and only they have feedback memory.

use super::encoded::GossipOptions;
use super::gossip::Stochastic;
use super::mixing::Mixing;
use super::schedule::{Schedule, mixing_at};
use crate::encoding::Encoding;
use crate::{Buffer, Communicator, Hierarchy, Primitive, ReduceOp, Result};

impl Hierarchy {
    /// Mixes the means of the hosts as [`Communicator::gossip`] mixes ranks.
    ///
    /// # Errors
    /// As [`Communicator::gossip`].
    pub fn gossip<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        schedule: &'a dyn Schedule,
        step: u64,
    ) -> Primitive<'a> {
        Box::pin(async move {
            let mix = async |leaders: &Communicator, x: &mut Buffer| {
                let mixing = leaders.mixing(schedule, step, Stochastic::Rows)?;
                leaders.gossip_by(&self.weighed(mixing), x).await
            };
            self.between_hosts(buffer, mix).await
        })
    }

    /// Mixes the means of the hosts as [`Communicator::gossip_encoded`] mixes ranks.
    ///
    /// # Errors
    /// As [`Communicator::gossip_encoded`].
    pub fn gossip_encoded<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        schedule: &'a dyn Schedule,
        step: u64,
        encoding: &'a mut Encoding,
        options: GossipOptions,
    ) -> Primitive<'a> {
        Box::pin(async move {
            let mix = async |leaders: &Communicator, x: &mut Buffer| {
                let mixing = leaders.mixing(schedule, step, Stochastic::Both)?;
                leaders.gossip_encoded_by(&self.weighed(mixing), x, encoding, options).await
            };
            self.between_hosts(buffer, mix).await
        })
    }

    /// Starts the state of an encoding at the current means of the hosts; see [`Communicator::gossip_synchronize`].
    ///
    /// # Errors
    /// As [`Communicator::gossip_synchronize`].
    pub fn gossip_synchronize<'a>(
        &'a self,
        buffer: &'a Buffer,
        schedule: &'a dyn Schedule,
        step: u64,
        encoding: &'a mut Encoding,
    ) -> Primitive<'a> {
        Box::pin(async move {
            let begin = async |leaders: &Communicator, x: &mut Buffer| {
                let mixing = leaders.mixing(schedule, step, Stochastic::Both)?;
                leaders.gossip_synchronize_by(&self.weighed(mixing), x, encoding).await
            };
            self.between_hosts(&mut buffer.copied()?, begin).await
        })
    }

    /// Mixes the sums of the hosts as [`Communicator::push_sum`] mixes ranks. The ranks of a host have one weight.
    ///
    /// # Errors
    /// As [`Communicator::push_sum`].
    pub fn push_sum<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        weight: &'a mut f64,
        schedule: &'a dyn Schedule,
        step: u64,
    ) -> Primitive<'a> {
        Box::pin(async move {
            let push = async |leaders: &Communicator, x: &mut Buffer| {
                let mixing = leaders.mixing(schedule, step, Stochastic::Columns)?;
                leaders.push_sum_by(&mixing.for_sums_of(&self.ranks_by_host()), x, weight).await
            };
            self.between_hosts(buffer, push).await?;
            let mut of_host = Buffer::from_slice(&[*weight])?;
            self.host().broadcast(&mut of_host, 0).await?;
            *weight = of_host.host::<f64>()?[0];
            Ok(())
        })
    }

    /// Returns the matrix of hosts with which [`Hierarchy::gossip`] mixes: that of `schedule` at `step`, weighted by
    /// the numbers of ranks.
    ///
    /// # Errors
    /// As [`mixing_at`].
    pub fn mixing(&self, schedule: &dyn Schedule, step: u64) -> Result<Mixing> {
        Ok(self.weighed(mixing_at(schedule, self.hosts().len(), step)?))
    }

    /// Returns a matrix of hosts that preserves the mean over ranks.
    fn weighed(&self, mixing: Mixing) -> Mixing {
        mixing.for_means_of(&self.ranks_by_host())
    }

    fn ranks_by_host(&self) -> Vec<usize> {
        self.hosts().iter().map(Vec::len).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spawn_hosts;

    /// A schedule of a user whose matrices are for one member more.
    #[derive(Debug)]
    struct OneMore;

    impl Schedule for OneMore {
        fn mixing(&self, size: usize, _step: u64) -> Result<Mixing> {
            Mixing::pull(size + 1, |_| [].into())
        }
    }

    #[test]
    fn a_matrix_for_other_hosts_is_refused() {
        let said = spawn_hosts(&[0, 0, 1], |comm| {
            let hierarchy = comm.block_on(comm.hierarchy())?;
            Ok(hierarchy.mixing(&OneMore, 0).unwrap_err().to_string())
        });
        for said in said.unwrap() {
            assert!(said.contains("a matrix for 3 ranks instead of 2"), "{said}");
        }
    }
}
