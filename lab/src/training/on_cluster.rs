//! A training on the ranks of a simulated cluster.

use super::{Training, record};
use crate::outcome::TrainingOutcome;
use crate::virtual_ranks::guarded;
use hexagram::logical::testing::all_or_cause;
use hexagram::physical::sim::Simulation;
use hexagram::{Communicator, Result};

/// Record of a training on a simulated cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedTraining {
    /// Record of the training, in the cluster's time.
    pub outcome: TrainingOutcome,
    /// Number of departures and arrivals of messages.
    pub events: u64,
    /// Hash of these events and their times.
    pub fingerprint: u64,
}

/// Simulated cluster on which a training runs.
pub struct OnCluster<'a> {
    /// Ranks, hosts, links and rates, and the seed of random events on the links.
    pub simulation: Simulation,
    /// Factor by which the passes of each rank take longer.
    pub slowness: Vec<f64>,
    /// Called after each recorded state, with the step of rank 0 and the seconds since the start.
    pub watch: &'a (dyn Fn(u64, f64) + Sync),
}

/// Runs a training with real numbers on the ranks of a simulated cluster, and returns its record, in the cluster's
/// time. [`Training::ranks`] is ignored.
///
/// # Errors
/// As [`train`](crate::train).
pub fn train_on_cluster(training: &Training, on: &OnCluster<'_>) -> Result<SimulatedTraining> {
    let ranks = on.simulation.cluster.hosts().len();
    let training = Training { ranks, ..training.clone() };
    training.check()?;
    let shares = training.shares()?;
    let ran = on.simulation.run(|world| {
        let rank = world.rank();
        let slowness = on.slowness.get(rank).copied().unwrap_or(1.0);
        let own = Training { compute: training.compute.mul_f64(slowness), ..training.clone() };
        let watch = |step, seconds| {
            if rank == 0 {
                (on.watch)(step, seconds);
            }
        };
        guarded(&world, &|comm: &Communicator| record(&own, comm, &shares, &watch))
    })?;
    let outcome = training.outcome_of(all_or_cause(ran.results)?);
    Ok(SimulatedTraining { outcome, events: ran.events, fingerprint: ran.fingerprint })
}
