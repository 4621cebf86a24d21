//! Jobs on a simulated cluster: ranks that are started as processes, meet, watch each other, and may fail.

use super::Simulator;
use crate::bootstrap::{Launcher, Placement, Rendezvous};
use crate::control::health::HeartbeatOptions;
use crate::error::Result;
use crate::runtime::{self, Instant};
use crate::sim::connect::{SimBackend, peer};
use crate::sim::network::wires::Flaw;
use crate::sim::simulation::{Outcome, Simulation, local};
use crate::system::limits;
use crate::transport::TransportKind;
use crate::world::{JoinOptions, World};
use std::sync::Arc;
use std::time::Duration;

/// Name at which the ranks of a job meet.
const RENDEZVOUS: &str = "rendezvous";

/// Terms of a job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Options with which every rank joins, except for the transport.
    pub options: JoinOptions,
    /// Virtual time at which the job ends, even if ranks still run.
    pub limit: Duration,
    /// True to keep a log of all events.
    pub logged: bool,
    /// Flaw of the library for the run to find.
    #[doc(hidden)]
    pub flaw: Option<Flaw>,
}

impl Default for Job {
    fn default() -> Self {
        let options = JoinOptions { heartbeat: Some(HeartbeatOptions::default()), ..JoinOptions::default() };
        Job { options, limit: Duration::from_secs(3600), logged: false, flaw: None }
    }
}

/// End of a rank.
#[derive(Debug)]
pub struct Ended<R> {
    /// Its return value. For a rank that has died, it has no meaning: that rank continues in isolation.
    pub result: Result<R>,
    /// Virtual time at which it ended.
    pub at: Duration,
}

/// A job that was played.
#[derive(Debug)]
pub struct Played<R> {
    /// Ends of the ranks, `None` for a rank that had not ended at the end of the job; and the counts.
    pub outcome: Outcome<Option<Ended<R>>>,
    /// Lines of the log, with the virtual time in seconds at the start of each.
    pub log: Vec<String>,
}

impl Simulation {
    /// Starts `rank` on every rank as in a separate process: the ranks meet at a rendezvous and monitor each other by
    /// heartbeats over sockets of the simulated cluster, all by the code of real jobs.
    ///
    /// ```
    /// use hexagram_physical::sim::{Cluster, Job, Simulation};
    /// use hexagram_physical::{Error, runtime};
    /// use std::time::Duration;
    ///
    /// let cluster = Cluster::flat(4, 2, "10gbit,50us".parse()?, "300gbit,2us".parse()?)?;
    /// let faults = vec!["3s rank 2 stops".parse()?];
    /// let played = Simulation { faults, ..Simulation::new(cluster) }.play(&Job::default(), |world| {
    ///     while world.health().verdict().is_none() {
    ///         runtime::sleep(Duration::from_millis(10));
    ///     }
    ///     Ok(world.health().verdict().map(|verdict| verdict.culprit.rank))
    /// })?;
    /// let first = played.outcome.results.into_iter().flatten().next();
    /// assert_eq!(first.and_then(|ended| ended.result.ok()), Some(Some(2)));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if a rank panics or a fault is of no rank;
    /// [`Error::System`](crate::Error::System) if memory for stacks runs out.
    pub fn play<R: Send>(&self, job: &Job, rank: impl Fn(World) -> Result<R> + Sync) -> Result<Played<R>> {
        limits::raise_open_files();
        let schedule = self.schedule();
        self.check_faults()?;
        schedule.expect(&self.faults);
        schedule.bound(job.limit, job.flaw);
        if job.logged {
            schedule.keep_log();
        }
        let rank = &rank;
        let process = |number| {
            let schedule = &schedule;
            move || {
                let joined = self.join(job, number, schedule);
                let result = joined.and_then(rank);
                Ended { result, at: runtime::now().duration_since(Instant::after_origin(Duration::ZERO)) }
            }
        };
        let outcome = self.execute(&schedule, (0..self.cluster.ranks()).map(process))?;
        Ok(Played { outcome, log: schedule.take_log() })
    }

    /// Joins as a rank of a job.
    fn join(&self, job: &Job, rank: usize, schedule: &Arc<Simulator>) -> Result<World> {
        let hosts = self.cluster.hosts();
        let (local_rank, local_size) = local(hosts, rank);
        let placement = Placement {
            rank,
            size: hosts.len(),
            local_rank,
            local_size,
            rendezvous: Rendezvous::Local(RENDEZVOUS.to_owned()),
            secret: b"simulated".to_vec(),
            launcher: Launcher::Store,
        };
        let options = JoinOptions { transport: TransportKind::Sim, ..job.options.clone() };
        World::join_on(&placement, &options, &SimBackend(Arc::clone(schedule)), &peer(rank, hosts[rank]))
    }
}
