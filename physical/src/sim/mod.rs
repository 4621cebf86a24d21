//! The simulated cluster: the ranks of a job as fibers of one thread, on a network whose time is virtual. Use it to see
//! what an algorithm does on a cluster that you do not have.
//!
//! The code of a rank is the same as anywhere: it gets a [`World`], opens endpoints, and computes. What waits, waits
//! in virtual time, which passes at once; what computes does so for real, and takes the time that [`Rates`] say. A run
//! follows from its arguments, its seed and what its ranks compute, to the last bit: on every machine, if that is.
//!
//! `cluster`, `shape`, `topology` and `link` describe what is simulated, `fault` what goes wrong, `rates` what takes time.
//! `schedule` has the clock and says which fiber runs, `agenda` what happens when, `wires` how messages (`parcels`)
//! travel, `routes` which way, `flows` how they share links, and `mail` where they arrive. `connect` and `endpoint` are
//! the transport, as in every backend, and `operations` what an endpoint has under way. `job` starts ranks as processes,
//! which meet and watch each other over `sockets`.

#![allow(clippy::disallowed_methods, reason = "a backend, which gives simulated ranks all of these")]

mod agenda;
mod cluster;
mod connect;
mod endpoint;
mod fault;
mod fiber;
mod flows;
mod job;
mod link;
mod mail;
mod operations;
mod parcels;
mod phantom;
mod rates;
mod routes;
mod schedule;
mod shape;
mod sockets;
mod statement;
#[cfg(test)]
mod tests;
mod topology;
mod wires;

pub use cluster::{Cluster, HostSpec, MAX_RANKS};
pub use fault::{Cut, Fault, FaultKind};
pub use job::{Ended, Job, Played};
pub use link::{LinkSpec, bandwidth, duration};
pub use phantom::Phantom;
pub use rates::Rates;
pub use shape::Shape;
pub use topology::Topology;
#[doc(hidden)]
pub use wires::Flaw;

use crate::error::{Error, Result};
use crate::runtime::{Runtime, within};
use crate::transport::TransportKind;
use crate::world::World;
use connect::{Knowledge, SimFabric};
use schedule::Simulator;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wires::Wires;

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
    /// Seed of all that is drawn: jitter, stalls, and with `shuffled` the order of what happens at once.
    pub seed: u64,
    /// True to let the seed choose the order of what happens at once, to find what depends on it.
    pub shuffled: bool,
    /// Faults of ranks, hosts and links. With any, each rank knows of the others what it has been told or finds out, as
    /// processes do.
    pub faults: Vec<Fault>,
}

/// Outcome of a simulated run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<R> {
    /// Values that the ranks have returned, by rank; of one that has died, what it would have: it goes on alone.
    pub results: Vec<R>,
    /// Virtual time from the start to the end of the last rank.
    pub elapsed: Duration,
    /// Number of departures and arrivals of messages.
    pub events: u64,
    /// Hash of all of them, with their times: equal runs have equal ones.
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
    /// [`Error::Usage`] if a rank panics or waits for what never comes, or if a fault is of no rank or host;
    /// [`Error::System`] if memory for stacks runs out.
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
            World::assemble(number, local(&hosts, number), hosts, TransportKind::Sim, fabric, None)
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
    fn schedule(&self) -> Arc<Simulator> {
        let wires = Wires::new(&self.cluster, agenda::apart(self.seed));
        let shuffle = self.shuffled.then_some(self.seed);
        Arc::new(Simulator::new(self.cluster.ranks(), wires, self.rates.clone(), shuffle))
    }

    /// Runs what each rank does. Its result is `None` for a rank that had not ended when the run did.
    fn execute<R: Send, W: FnOnce() -> R + Send>(
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
            // SAFETY: what it borrows outlives this call. A fiber that has not ended when `run` returns never goes on, and
            // is not dropped; work that has not begun then is kept by the schedule, which it keeps itself.
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
}

impl Simulation {
    /// Fails unless faults are of ranks and hosts of this cluster.
    fn check_faults(&self) -> Result<()> {
        self.faults.iter().try_for_each(|fault| fault.check(self.cluster.ranks(), self.cluster.host_count()))
    }
}

/// Returns the number of a rank among those of its host, and their number.
fn local(hosts: &[usize], rank: usize) -> (usize, usize) {
    let of_host = |ranks: &[usize]| ranks.iter().filter(|host| **host == hosts[rank]).count();
    (of_host(&hosts[..rank]), of_host(hosts))
}
