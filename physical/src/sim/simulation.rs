//! A simulation: runs the ranks of a world as fibers, from time zero to their ends.

use super::cluster::Cluster;
use super::cluster::fault::Fault;
use super::connect::{Knowledge, SimFabric};
use super::network::rates::Rates;
use super::network::wires::Wires;
use super::schedule::Simulator;
use super::schedule::agenda::message_seed;
use crate::error::{Error, Result};
use crate::runtime::{Runtime, within};
use crate::transport::TransportKind;
use crate::world::World;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A cluster with the rates of its ranks, and a seed.
///
/// ```
/// use hexagram_physical::sim::{Cluster, Simulation};
/// use hexagram_physical::runtime;
/// use std::time::Duration;
///
/// let cluster = Cluster::flat(8, 2, "10gbit,50us".parse()?, "300gbit,2us".parse()?)?;
/// let outcome = Simulation::new(cluster).run(|world| {
///     runtime::sleep(Duration::from_secs(3600) * world.rank() as u32);
///     world.rank()
/// })?;
/// assert_eq!(outcome.results, [0, 1, 2, 3, 4, 5, 6, 7]);
/// assert_eq!(outcome.elapsed, Duration::from_secs(7 * 3600));
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Simulation {
    /// Ranks, hosts and links.
    pub cluster: Cluster,
    /// Time that arithmetic and messages take a rank.
    pub rates: Rates,
    /// Seed of all random numbers: jitter, stalls, and with `shuffled` the order of simultaneous events.
    pub seed: u64,
    /// True to choose the order of simultaneous events by the seed, to find code that depends on it.
    pub shuffled: bool,
    /// Faults of ranks, hosts and links. With faults, each rank sees only failures of other ranks that were reported or
    /// detected, as processes do.
    pub faults: Vec<Fault>,
}

/// Outcome of a simulated run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<R> {
    /// Return values of the ranks, by rank. A rank that a fault killed continues in isolation, and its return value
    /// is included.
    pub results: Vec<R>,
    /// Virtual time from the start to the end of the last rank.
    pub elapsed: Duration,
    /// Number of departures and arrivals of messages.
    pub events: u64,
    /// Hash of these events and their times: equal runs have equal hashes.
    pub fingerprint: u64,
}

impl Simulation {
    /// Returns a simulation in which only the network takes time, with seed 0.
    pub fn new(cluster: Cluster) -> Self {
        Simulation { cluster, rates: Rates::free(), seed: 0, shuffled: false, faults: Vec::new() }
    }

    /// Runs `rank` on every rank from time zero until all have ended, with the threads that they start.
    ///
    /// # Errors
    /// [`Error::Usage`] if a rank panics or waits for events that never come, or if a fault names an unknown rank or
    /// host; [`Error::System`] if memory for stacks runs out.
    pub fn run<R: Send>(&self, rank: impl Fn(World) -> R + Sync) -> Result<Outcome<R>> {
        let hosts = self.cluster.hosts();
        let schedule = self.schedule();
        self.check_faults()?;
        let knowledge = if self.faults.is_empty() { Knowledge::Shared } else { Knowledge::OfEach };
        if knowledge == Knowledge::OfEach {
            schedule.expect(&self.faults);
        }
        let shared: Arc<[usize]> = hosts.into();
        let world = |(number, fabric): (usize, Arc<SimFabric>)| {
            let hosts = Arc::clone(&shared);
            World::assemble(number, local(&hosts, number), hosts, TransportKind::Sim, fabric, None, None)
        };
        let worlds = SimFabric::all(hosts, &schedule, knowledge).into_iter().enumerate().map(world);
        let rank = &rank;
        let outcome = self.execute(&schedule, worlds.map(|world| move || rank(world)))?;
        Ok(Outcome {
            results: outcome.results.into_iter().flatten().collect(),
            elapsed: outcome.elapsed,
            events: outcome.events,
            fingerprint: outcome.fingerprint,
        })
    }

    /// Returns the schedule of a new world.
    pub(super) fn schedule(&self) -> Arc<Simulator> {
        let wires = Wires::new(&self.cluster, message_seed(self.seed));
        let shuffle = self.shuffled.then_some(self.seed);
        Arc::new(Simulator::new(self.cluster.ranks(), wires, self.rates.clone(), shuffle))
    }

    /// Runs the work of each rank. Its result is `None` for a rank that had not ended when the run did.
    pub(super) fn execute<R: Send, W: FnOnce() -> R + Send>(
        &self,
        schedule: &Arc<Simulator>,
        ranks: impl Iterator<Item = W>,
    ) -> Result<Outcome<Option<R>>> {
        let runtime: Arc<dyn Runtime> = schedule.clone();
        let results: Mutex<Vec<Option<Result<R>>>> =
            Mutex::new(self.cluster.hosts().iter().map(|_| None).collect());
        let found = &results;
        for (number, rank) in ranks.enumerate() {
            let work: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
                let outcome = catch_unwind(AssertUnwindSafe(rank));
                let outcome = outcome.map_err(|panic| Error::panicked("a simulated rank", &*panic));
                found.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(outcome);
            });
            // SAFETY: the borrowed values outlive this call. A fiber that has not ended when `run` returns never
            // continues, and is not dropped; the schedule then keeps work that has not begun, and keeps itself alive.
            let work: Box<dyn FnOnce() + Send + 'static> = unsafe { std::mem::transmute(work) };
            schedule.begin(number, work);
        }
        let counts = within(runtime, || schedule.run())?;
        let results = std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Outcome {
            results: results.into_iter().map(Option::transpose).collect::<Result<_>>()?,
            elapsed: counts.elapsed,
            events: counts.events,
            fingerprint: counts.fingerprint,
        })
    }

    /// Fails unless faults are of ranks and hosts of this cluster.
    pub(super) fn check_faults(&self) -> Result<()> {
        self.faults.iter().try_for_each(|fault| fault.check(self.cluster.ranks(), self.cluster.host_count()))
    }
}

/// Returns the number of a rank on its host, and the number of ranks on that host.
pub(super) fn local(hosts: &[usize], rank: usize) -> (usize, usize) {
    let of_host = |ranks: &[usize]| ranks.iter().filter(|host| **host == hosts[rank]).count();
    (of_host(&hosts[..rank]), of_host(hosts))
}
