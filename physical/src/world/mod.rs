//! A world: all ranks of one job, as one rank sees them. Start here to get an endpoint.

mod channels;
mod join;
mod options;
mod variables;

use crate::backends::thread::ThreadFabric;
use crate::bootstrap::{Placement, Store};
use crate::control::Control;
use crate::control::health::Health;
use crate::device_paths::staging::Staging;
use crate::elastic::generation::Generation;
#[cfg(feature = "sim")]
use crate::error::Peer;
use crate::error::{Error, ErrorContext, Result};
use crate::system::limits;
#[cfg(feature = "sim")]
use crate::transport::Backend;
use crate::transport::ranks::MAX_RANKS;
use crate::transport::{Fabric, Traffic, Transport, TransportKind};
use crate::waiting::deadline;
use crate::waiting::spin_budget::patience;
use channels::Channels;
pub use options::JoinOptions;
pub(crate) use options::MAX_SOCKETS;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
pub use variables::{RESTART, check_environment, log_level, restarts, warn_of_unknown};

/// All ranks of one job, as this rank sees them. Cheap to clone, and free to move between threads; endpoints are not.
///
/// Dropping the last clone announces the departure of this rank to the others. On rank 0, which relays the monitoring
/// of all ranks, this takes until all others have left, or one has failed; at most the operation deadline. If it
/// happens while the thread panics, the others are notified that this rank failed.
#[derive(Clone)]
pub struct World(Arc<WorldInner>);

struct WorldInner {
    rank: usize,
    local: (usize, usize),
    /// By rank; ranks of one process may share them.
    hosts: Arc<[usize]>,
    transport: TransportKind,
    fabric: Arc<dyn Fabric>,
    channels: Channels,
    /// Longest time that nothing of an operation may move, in milliseconds.
    deadline: AtomicU64,
    /// Dropped first, so that the rank leaves while the data connections are still open.
    control: Mutex<Option<Control>>,
    elastic: Option<Elastic>,
}

/// Facts about a world whose members may change.
pub(crate) struct Elastic {
    generation: Arc<Generation>,
    /// Options of the join, for the next generation.
    options: JoinOptions,
}

impl WorldInner {
    /// Announces the departure of this rank, once. Rank 0 waits for the others, but not for longer than `limit`.
    fn leave(&self, limit: Duration) {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(control) = control {
            control.leave(limit);
        }
    }
}

impl Drop for WorldInner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fabric.health().fail_self("panicked");
        }
        self.leave(Duration::from_millis(self.deadline.load(Ordering::Relaxed)));
        self.fabric.leave();
    }
}

impl World {
    /// Joins the job that the launcher's variables describe.
    ///
    /// The limit of open files of the process, which its children inherit, is raised to the maximum that the system
    /// allows, since every other rank takes several.
    ///
    /// ```no_run
    /// use hexagram_physical::{JoinOptions, World};
    ///
    /// // Started by `hexagram run -n 4 -- PROGRAM`, mpirun, srun or torchrun.
    /// let world = World::join(&JoinOptions::default())?;
    /// println!("rank {} of {}", world.rank(), world.size());
    /// # Ok::<(), hexagram_physical::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Setup`] without a launcher, or if a rank is refused or missing at the deadline; [`Error::System`] if
    /// an address cannot be used.
    pub fn join(options: &JoinOptions) -> Result<Self> {
        join::join(options)
    }

    /// Joins at a known place. Over a transport that knows its own, such as MPI, only rank and size are used.
    ///
    /// # Errors
    /// As [`World::join`].
    pub fn join_as(placement: &Placement, options: &JoinOptions) -> Result<Self> {
        join::join_as(placement, options)
    }

    /// Joins as `rank` of `size`, with ranks that reach the same key-value store: rank 0 listens at a free address
    /// and announces it in the store. The same ranks may join repeatedly, through different keys or, once they have
    /// all joined, the same. Over a transport that knows its own place, such as MPI, only rank and size are used.
    ///
    /// Any process that can read the store can join: see [`Store`].
    ///
    /// # Errors
    /// As [`World::join`]; [`Error::System`] if the store fails.
    pub fn join_through(store: &dyn Store, rank: usize, size: usize, options: &JoinOptions) -> Result<Self> {
        join::join_through(store, rank, size, options)
    }

    /// Creates the worlds of `size` ranks that will be threads of this process, by rank.
    ///
    /// # Errors
    /// [`Error::Usage`] unless `size` is from 1 to [`MAX_RANKS`].
    pub fn threads(size: usize) -> Result<Vec<Self>> {
        limits::raise_open_files();
        if !(1..=MAX_RANKS).contains(&size) {
            let what = format!("a world of {size} ranks cannot be threads of one process");
            return Err(Error::usage(what, format!("use 1 to {MAX_RANKS} ranks")));
        }
        let hosts: Arc<[usize]> = vec![0; size].into();
        let world = |(rank, fabric): (usize, Arc<ThreadFabric>)| {
            Self::assemble(rank, (rank, size), Arc::clone(&hosts), TransportKind::Thread, fabric, None, None)
        };
        Ok(ThreadFabric::all(size).into_iter().enumerate().map(world).collect())
    }

    /// Joins over the transport of a simulated cluster, as a process that `mine` names.
    #[cfg(feature = "sim")]
    pub(crate) fn join_on(
        placement: &Placement,
        options: &JoinOptions,
        backend: &dyn Backend,
        mine: &Peer,
    ) -> Result<Self> {
        join::join_on(placement, options, backend, mine)
    }

    pub(crate) fn assemble(
        rank: usize,
        local: (usize, usize),
        hosts: Arc<[usize]>,
        transport: TransportKind,
        fabric: Arc<dyn Fabric>,
        control: Option<Control>,
        elastic: Option<Elastic>,
    ) -> Self {
        // Measured now rather than in the middle of the first wait.
        patience();
        let deadline = u64::try_from(deadline::at_first().as_millis()).unwrap_or(u64::MAX).into();
        World(Arc::new(WorldInner {
            rank,
            local,
            hosts,
            transport,
            fabric,
            channels: Channels::default(),
            deadline,
            control: Mutex::new(control),
            elastic,
        }))
    }

    /// Returns the number of this generation of an elastic job, from 1; `None` in a job whose members stay.
    pub fn generation(&self) -> Option<u64> {
        self.0.elastic.as_ref().map(|elastic| elastic.generation.number)
    }

    /// Returns true once this generation of an elastic job ends: a member died, left early or gave up, or a process waits to
    /// join. Continue with [`World::next`] then. Always true after an operation has failed with [`Error::Membership`], or with
    /// an error that follows from it, and soon on every member. False on a rank that has given up because of an error of its
    /// own, such as [`Error::Mismatch`] or [`Error::NotFinite`], which would return in the next generation: it should exit.
    /// Always false in a job whose members stay.
    pub fn changed(&self) -> bool {
        let health = self.health();
        let is_over = |elastic: &Elastic| elastic.generation.is_over() || health.verdict().is_some();
        !health.has_given_up() && self.0.elastic.as_ref().is_some_and(is_over)
    }

    /// Leaves this generation of an elastic job, and joins the next one, with the same options. The next one begins once all
    /// processes that are left have called this. Survivors keep their order; newcomers follow them. A process that does not
    /// call this within the time of `hexagram run --rejoin-wait` is killed.
    ///
    /// Operations of this world that have not ended, here or on other ranks, fail with [`Error::Membership`]. Communicators of
    /// this world keep memory and descriptors until they are dropped.
    ///
    /// ```no_run
    /// use hexagram_physical::{JoinOptions, World};
    ///
    /// // Started by `hexagram run -n 4 --elastic 2 -- PROGRAM`.
    /// let mut world = World::join(&JoinOptions::default())?;
    /// for step in 0..1000 {
    ///     // Train the step here, and undo it if it fails while `changed` is true.
    ///     if world.changed() {
    ///         world = world.next()?;
    ///     }
    /// }
    /// # Ok::<(), hexagram_physical::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] in a job that is not elastic; [`Error::Setup`] if the job ends, or a process is late; as
    /// [`World::join`].
    pub fn next(self) -> Result<Self> {
        let Some(Elastic { generation, options }) = &self.0.elastic else {
            let what = "this world has no next generation: the members of its job stay";
            return Err(Error::usage(what, "start the job by `hexagram run --elastic MIN`"));
        };
        let (link, options) = (Arc::clone(generation.link()), options.clone());
        if let Some(verdict) = self.health().verdict().filter(|verdict| !verdict.is_arrival()) {
            generation.report_failed(verdict.culprit.rank);
        }
        // Ends operations of other threads.
        generation.end(None, "this rank has called World::next");
        self.0.leave(Duration::ZERO);
        drop(self);
        join::join_next(&link, &options)
    }

    /// Returns this rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.0.fabric.health().peers().len()
    }

    /// Returns the rank among the ranks of this host, from the launcher, or from [`World::hosts`] if the ranks met
    /// through a [`Store`].
    pub fn local_rank(&self) -> usize {
        self.0.local.0
    }

    /// Returns the number of ranks on this host, from the launcher, or from [`World::hosts`] if the ranks met through
    /// a [`Store`].
    pub fn local_size(&self) -> usize {
        self.0.local.1
    }

    /// Returns the hosts of all ranks, by rank, numbered from 0 in the order of ranks. Ranks are on one host if they
    /// share memory, see [`JoinOptions`]; over the tcp transport, if they might. All ranks get the same result, which
    /// does not depend on the launcher.
    pub fn hosts(&self) -> &[usize] {
        &self.0.hosts
    }

    /// Returns the transport.
    pub fn transport(&self) -> TransportKind {
        self.0.transport
    }

    /// Returns the known state of the other ranks.
    pub fn health(&self) -> &Arc<Health> {
        self.0.fabric.health()
    }

    /// Returns the counts of bytes that this rank has sent so far, on all channels, including headers.
    pub fn traffic(&self) -> &Traffic {
        self.0.fabric.traffic()
    }

    /// Returns the longest time that nothing of an operation may move before it fails.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.0.deadline.load(Ordering::Relaxed))
    }

    /// Sets the deadline of all operations that begin from now on, on all channels of this rank.
    pub fn set_deadline(&self, deadline: Duration) {
        let millis = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        self.0.deadline.store(millis, Ordering::Relaxed);
    }

    /// Opens an endpoint for the calling thread. All ranks must open the same channels; each channel carries its own
    /// messages, so that two threads of a rank never disturb each other. Choose numbers below 32 768.
    ///
    /// # Errors
    /// [`Error::Usage`] if this rank has opened the channel before, [`Error::Setup`] or [`Error::System`] if a peer
    /// does not arrive before the join deadline.
    pub fn open(&self, channel: u16) -> Result<Rc<dyn Transport>> {
        let all: Vec<usize> = (0..self.size()).collect();
        self.open_among(channel, &all)
    }

    /// Opens an endpoint as [`World::open`] does, connected with those of `ranks` only, which all open it and name the
    /// same ranks. The endpoint still numbers ranks as the world does.
    ///
    /// # Errors
    /// As [`World::open`]; [`Error::Usage`] unless `ranks` are different ranks of the world and this one is among them.
    pub fn open_among(&self, channel: u16, ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        let ranks = self.ascending(ranks)?;
        if !self.0.channels.note_open(channel) {
            let what = format!("channel {channel} is open already on rank {}", self.rank());
            return Err(Error::usage(what, "open each channel once, and keep its endpoint"));
        }
        let opened = self.0.fabric.open(channel, &ranks).map(|endpoint| match endpoint.devices() {
            Some(_) => endpoint,
            None => Staging::around(endpoint, Arc::clone(self.0.fabric.traffic())),
        });
        opened.map_err(|error| {
            self.0.channels.note_failed(channel);
            self.health().explain(error, ErrorContext::Opening(channel))
        })
    }

    /// Returns the ranks in ascending order.
    fn ascending(&self, ranks: &[usize]) -> Result<Vec<usize>> {
        let mut ascending = ranks.to_vec();
        ascending.sort_unstable();
        ascending.dedup();
        let exist = ascending.last().is_some_and(|last| *last < self.size());
        if exist && ascending.len() == ranks.len() && ascending.contains(&self.rank()) {
            return Ok(ascending);
        }
        let what = format!("rank {} cannot open a channel among the ranks {ranks:?}", self.rank());
        Err(Error::usage(what, "name different ranks of the world, this one among them"))
    }

    /// Returns a channel whose number is unused; the k-th call returns the same one on all ranks.
    ///
    /// # Errors
    /// [`Error::Usage`] once all are taken.
    pub fn propose_channel(&self) -> Result<u16> {
        self.0.channels.propose()
    }

    /// Takes a number that ranks have agreed on. Returns false if this rank has taken it before.
    pub fn take_channel(&self, channel: u16) -> bool {
        self.0.channels.take(channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_whose_members_stay_has_no_next_generation() {
        let world = World::threads(1).unwrap().remove(0);
        assert_eq!((world.generation(), world.changed()), (None, false));
        world.health().fail_self("gave up");
        assert!(!world.changed());
        let error = world.next().map(drop).unwrap_err();
        assert!(
            matches!(&error, Error::Usage { .. }) && error.to_string().contains("--elastic MIN"),
            "{error}"
        );
    }
}
