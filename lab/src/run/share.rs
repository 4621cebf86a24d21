//! Samplers by which a training gives samples to ranks.

use super::RunError;
use clap::ValueEnum;
use hexagram::Error;
use hexagram::sampler::{
    BatchSampler, Batching, Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions,
    DistributedSampler, ForRank, LoadBalancingBatchSampler, LoadBalancingDistributedSampler,
    LoadBalancingOptions, Sampler, SamplerError,
};
use std::fmt;

/// Sampler of a training.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SamplerKind {
    /// Samples at random: `DistributedSampler`
    #[default]
    Distributed,
    /// Samples of about the same cost at the same time: `LoadBalancingDistributedSampler`
    LoadBalancing,
    /// Steps in which all ranks have the same cost: `CostBalancedSampler`
    CostBalanced,
    /// Batches of about the same cost, in all steps: `LoadBalancingBatchSampler`
    Batch,
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// Costs of the samples of a training, and the sampler that balances them.
#[derive(Debug, Clone)]
pub struct Costs {
    pub(super) sampler: SamplerKind,
    pub(super) of: Complexities,
}

/// Order of batches for one rank.
pub(super) type Batches = Box<dyn Sampler<Item = Vec<usize>>>;

impl Costs {
    /// Takes the cost of each sample.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are no samples.
    pub fn new(sampler: SamplerKind, costs: Vec<f64>) -> Result<Self, Error> {
        let refused =
            |error: SamplerError| Error::usage(error.to_string(), "use a text of five lines or more");
        Ok(Costs { sampler, of: Complexities::new(costs).map_err(refused)? })
    }

    /// Returns the cost of some samples.
    pub(super) fn sum(&self, samples: &[usize]) -> f64 {
        let costs = self.of.as_slice();
        samples.iter().map(|sample| costs[*sample]).sum()
    }

    /// Returns the mean cost of `batch` samples.
    pub(super) fn of_batch(&self, batch: usize) -> f64 {
        let costs = self.of.as_slice();
        costs.iter().sum::<f64>() / costs.len() as f64 * batch as f64
    }

    /// Returns the order for one rank, with `batch` samples per step, exactly or on average.
    pub(super) fn batches(
        &self,
        (rank, ranks): (usize, usize),
        (batch, seed): (usize, u64),
    ) -> Result<Batches, RunError> {
        let balanced = || {
            let of_rank = LoadBalancingOptions::for_rank(rank, ranks);
            let options = LoadBalancingOptions { seed, drop_last: true, ..of_rank };
            LoadBalancingDistributedSampler::new(self.of.clone(), options)
        };
        Ok(match self.sampler {
            SamplerKind::Distributed => distributed(self.of.len(), (rank, ranks), (batch, seed))?,
            SamplerKind::LoadBalancing => Box::new(BatchSampler::new(balanced()?, batch, true)?),
            SamplerKind::CostBalanced => {
                let of_rank = CostBalancedOptions::for_rank(rank, ranks);
                let options = CostBalancedOptions { global_batch: batch * ranks, seed, ..of_rank };
                Box::new(CostBalancedSampler::new(self.of.clone(), options)?)
            }
            SamplerKind::Batch => {
                let longest = self.of.as_slice().iter().copied().fold(0.0, f64::max);
                let limit = Batching::MaxTokens(self.of_batch(batch).max(longest));
                Box::new(LoadBalancingBatchSampler::new(balanced()?, limit, true)?)
            }
        })
    }

    /// Returns, for each step of an epoch, the cost of each rank under `DistributedSampler`.
    ///
    /// # Errors
    /// As [`DistributedSampler::new`].
    pub(super) fn at_random(
        &self,
        epoch: u64,
        ranks: usize,
        order: (usize, u64),
    ) -> Result<Vec<Vec<f64>>, RunError> {
        let of_rank = |rank| -> Result<Vec<f64>, RunError> {
            let mut batches = distributed(self.of.len(), (rank, ranks), order)?;
            batches.set_epoch(epoch);
            Ok(batches.iter().map(|batch| self.sum(&batch)).collect())
        };
        Ok(by_step(&(0..ranks).map(of_rank).collect::<Result<Vec<_>, _>>()?))
    }
}

/// Returns the order of equally many samples for each rank.
///
/// # Errors
/// As [`DistributedSampler::new`].
pub(super) fn distributed(
    len: usize,
    (rank, ranks): (usize, usize),
    (batch, seed): (usize, u64),
) -> Result<Batches, RunError> {
    let of_rank = DistributedOptions::for_rank(rank, ranks);
    let sampler = DistributedSampler::new(DistributedOptions { len, seed, drop_last: true, ..of_rank })?;
    Ok(Box::new(BatchSampler::new(sampler, batch, true)?))
}

/// Turns steps by rank into ranks by step.
pub(super) fn by_step(ranks: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let steps = ranks.iter().map(Vec::len).min().unwrap_or(0);
    (0..steps).map(|step| ranks.iter().map(|costs| costs[step]).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{LinesTask, LinesText};
    use std::time::Duration;

    /// Returns the cost of all steps, if a step costs what its busiest rank does, and all samples that were drawn.
    fn epoch(sampler: SamplerKind) -> (f64, Vec<usize>) {
        let lines = LinesTask::new(LinesText::embedded(), Duration::ZERO);
        let costs = Costs::new(sampler, lines.costs()).unwrap();
        let of_rank = |rank| costs.batches((rank, 2), (4, 3)).unwrap().iter().collect::<Vec<_>>();
        let ranks = [0, 1].map(of_rank);
        assert_eq!(ranks[0].len(), ranks[1].len(), "{sampler}");
        let sums = ranks.each_ref().map(|batches| batches.iter().map(|batch| costs.sum(batch)).collect());
        let steps = by_step(&sums).iter().map(|ranks| ranks.iter().copied().fold(0.0, f64::max)).sum();
        let mut drawn = ranks.concat().concat();
        drawn.sort_unstable();
        (steps, drawn)
    }

    #[test]
    fn balanced_ranks_wait_less_for_the_same_samples() {
        let (at_random, drawn) = epoch(SamplerKind::Distributed);
        assert!(drawn.len() == 168 && drawn.windows(2).all(|pair| pair[0] < pair[1]));
        for sampler in [SamplerKind::LoadBalancing, SamplerKind::CostBalanced, SamplerKind::Batch] {
            let (steps, drawn) = epoch(sampler);
            assert!(drawn.len() >= 160 && drawn.windows(2).all(|pair| pair[0] < pair[1]), "{sampler}");
            assert!(steps < 0.9 * at_random, "{sampler}: {steps} of {at_random}");
        }
    }
}
