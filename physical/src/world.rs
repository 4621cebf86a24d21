//! A world: all ranks of one job, as one rank sees them. Start here to get an endpoint.

mod door;

use crate::bootstrap::control::Control;
use crate::bootstrap::hosts::Hosts;
use crate::bootstrap::join::{self, ControlStreams, Joiner, LeaderConnection};
use crate::bootstrap::lead::lead;
use crate::bootstrap::membership::Membership;
use crate::bootstrap::parent::Parent;
use crate::bootstrap::peer_info::{JoinRequest, PeerInfo, PeerTable};
use crate::bootstrap::registered;
use crate::bootstrap::secret::Secret;
use crate::bootstrap::{Placement, variable};
use crate::error::{During, Error, Peer, Result};
use crate::health::{Health, Vigilance};
use crate::launch::MAX_RANKS;
use crate::limits;
#[cfg(feature = "mpi")]
use crate::mpi::introduce;
use crate::native::Check;
use crate::patience::patience;
use crate::shm::probe;
use crate::socket::{Tls, TlsFiles};
use crate::tcp::MAX_SOCKETS;
use crate::thread::ThreadFabric;
use crate::transport::{Traffic, Transport, TransportKind};
use door::Door;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Of operations, in milliseconds, unless the program says otherwise.
const DEADLINE: u64 = 300_000;
/// Channels from here on are given out by [`World::fresh_channel`].
const FRESH: u32 = 1 << 15;

/// What a transport gives a world: endpoints, one per channel.
pub(crate) trait Fabric: Send + Sync {
    /// Connects an endpoint with those that the other ranks open for the same channel.
    fn open(&self, channel: u16) -> Result<Rc<dyn Transport>>;
    fn health(&self) -> &Arc<Health>;
    fn traffic(&self) -> &Arc<Traffic>;
    /// Says that this rank has finished. Where ranks are processes, the control connection says it.
    fn leave(&self) {}
}

/// How to join.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// How bytes travel. [`TransportKind::Thread`] is for [`World::threads`].
    pub transport: TransportKind,
    /// How long to wait for the other ranks.
    pub deadline: Duration,
    /// How closely the ranks watch each other afterwards. `None`: as [`Vigilance::default`], with the silence that
    /// HEXAGRAM_SILENCE says.
    pub vigilance: Option<Vigilance>,
    /// What else all ranks must agree on, as text that an error can show: element types, bucket sizes, the algorithm.
    /// Ranks whose texts differ refuse to join.
    pub configuration: String,
    /// With what this rank speaks TLS to ranks elsewhere. `None`: with what HEXAGRAM_TLS_CERT, HEXAGRAM_TLS_KEY and
    /// HEXAGRAM_TLS_CA name, or not at all.
    pub tls: Option<TlsFiles>,
    /// Where to accept TCP connections: the name of an interface (`eth0`) or an address of this host. Otherwise
    /// HEXAGRAM_INTERFACE says so; otherwise it is the interface that leads to the rendezvous address.
    pub interface: Option<String>,
    /// TCP connections for each pair of ranks and channel, 1 to 16; of two ranks, the lower number holds. Otherwise
    /// HEXAGRAM_TCP_SOCKETS says so; otherwise 1, as more were measured to bring nothing unless the network limits the
    /// rate of each.
    pub sockets: Option<usize>,
    /// Any name of this host; ranks share memory if their names are equal and the system lets them, which they try.
    /// Otherwise HEXAGRAM_HOST says so; otherwise ranks try that are on one kernel and in one network namespace.
    pub host: Option<String>,
    /// How often ranks compare what they call before a collective of MPI's. Otherwise HEXAGRAM_CHECK says so; otherwise at
    /// the first use of each.
    pub check: Option<Check>,
}

impl JoinOptions {
    /// How closely the ranks are to watch each other.
    pub(crate) fn vigilance(&self) -> Result<Vigilance> {
        let vigilance = self.vigilance.map_or_else(Vigilance::from_env, Ok)?;
        vigilance.check()?;
        Ok(vigilance)
    }

    pub(crate) fn host(&self) -> Option<String> {
        self.host.clone().or_else(|| variable("HEXAGRAM_HOST"))
    }

    pub(crate) fn sockets(&self) -> Result<usize> {
        let text = variable("HEXAGRAM_TCP_SOCKETS");
        let asked = self.sockets.or_else(|| text.as_deref().map_or(Some(1), |text| text.trim().parse().ok()));
        asked.filter(|sockets| (1..=MAX_SOCKETS).contains(sockets)).ok_or_else(|| {
            let asked = self.sockets.map_or_else(|| text.unwrap_or_default(), |sockets| sockets.to_string());
            let what = format!("{asked} TCP connections for each pair of ranks (HEXAGRAM_TCP_SOCKETS)");
            Error::setup(what, format!("use 1 to {MAX_SOCKETS}"))
        })
    }

    /// What the files that are named hold, if any are.
    fn tls(&self) -> Result<Option<Tls>> {
        let files = if self.tls.is_some() { self.tls.clone() } else { TlsFiles::from_env()? };
        files.as_ref().map(Tls::load).transpose()
    }

    /// Where to accept TCP connections, at any port, if the user says so.
    fn interface(&self) -> Result<Option<SocketAddr>> {
        let asked = self.interface.clone().or_else(|| variable("HEXAGRAM_INTERFACE"));
        asked.map(|name| crate::bootstrap::interface::find(&name)).transpose()
    }
}

impl Default for JoinOptions {
    fn default() -> Self {
        JoinOptions {
            transport: TransportKind::Mixed,
            deadline: Duration::from_secs(60),
            vigilance: None,
            configuration: String::new(),
            interface: None,
            sockets: None,
            host: None,
            check: None,
            tls: None,
        }
    }
}

/// All ranks of one job, as this rank sees them. Cheap to clone, and free to move between threads; endpoints are not.
///
/// The last clone to be dropped says goodbye to the other ranks. On rank 0, over which the ranks watch each other, that
/// takes until all others have said so too, or one has failed; at most for the operation deadline. If it happens while
/// the thread panics, the others are told that this rank failed.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    rank: usize,
    local: (usize, usize),
    /// By rank.
    hosts: Vec<usize>,
    transport: TransportKind,
    fabric: Arc<dyn Fabric>,
    open: Mutex<Vec<u16>>,
    /// Longest that nothing of an operation may move, in milliseconds.
    deadline: AtomicU64,
    /// The next channel for those who do not care about its number.
    fresh: AtomicU32,
    /// Dropped first, so that the goodbye is said while the data connections are still open.
    control: Option<Control>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fabric.health().give_up("panicked");
        }
        if let Some(control) = self.control.take() {
            control.leave(Duration::from_millis(self.deadline.load(Ordering::Relaxed)));
        }
        self.fabric.leave();
    }
}

impl World {
    /// Joins the job that the launcher's variables describe.
    ///
    /// The process's limit of open files, which it then hands on to what it starts, is raised as far as the system lets
    /// it: every other rank takes several.
    ///
    /// # Errors
    /// [`Error::Setup`] if there is no launcher, or a rank is refused or missing at the deadline; [`Error::System`] if an
    /// address cannot be used.
    pub fn join(options: &JoinOptions) -> Result<Self> {
        #[cfg(feature = "mpi")]
        if options.transport == TransportKind::Mpi {
            return Self::join_by_mpi(options);
        }
        let placement = Placement::from_env()?.ok_or_else(|| {
            Error::setup(
                "no launcher has told this process its rank",
                "start it with `hexagram run -n 4 -- PROGRAM`, mpirun, srun or torchrun",
            )
        })?;
        Self::join_as(&placement, options)
    }

    /// Joins at a known place. Over MPI, which knows one by itself, only rank and size count.
    ///
    /// # Errors
    /// As [`World::join`].
    pub fn join_as(placement: &Placement, options: &JoinOptions) -> Result<Self> {
        limits::raise_open_files();
        #[cfg(feature = "mpi")]
        if options.transport == TransportKind::Mpi {
            let world = Self::join_by_mpi(options)?;
            if (world.rank(), world.size()) != (placement.rank, placement.size) {
                let rank = world.rank();
                let size = world.size();
                let what =
                    format!("rank {} of {} is rank {rank} of {size} to MPI", placement.rank, placement.size);
                return Err(Error::setup(what, "start the ranks with mpirun, and number them as it does"));
            }
            return Ok(world);
        }
        let rank = placement.rank;
        let limit = options.deadline;
        if rank >= placement.size {
            let what = format!("there is no rank {rank} in a world of {}", placement.size);
            return Err(Error::setup(what, "ranks count from 0 to size - 1"));
        }
        let asked = options.interface()?;
        let tls = options.tls()?;
        let mut request = JoinRequest::new(placement, options)?;
        let mut arrival = Arrival::new(placement, request.info.peer(), tls.clone(), limit)?;
        let interfaces = asked.map_or_else(|| arrival.interfaces(placement), |asked| Ok(vec![asked]));
        let door = interfaces.and_then(|interfaces| Door::open(options.transport, &interfaces, tls));
        let door = door.inspect_err(|error| arrival.give_up(error))?;
        door.announce(&mut request.info);
        Self::meet(placement, options, request, arrival, door)
    }

    /// Joins at the place that MPI tells.
    #[cfg(feature = "mpi")]
    fn join_by_mpi(options: &JoinOptions) -> Result<Self> {
        limits::raise_open_files();
        options.vigilance()?;
        let check = options.check.map_or_else(Check::from_env, Ok)?;
        let tls = options.tls()?;
        let (placement, listener, door) = introduce(check, options.interface()?, options.deadline)?;
        let request = JoinRequest::new(&placement, options)?;
        let arrival = match listener {
            Some(listener) => Arrival::Leader(listener.with_tls(tls), Secret::of(&placement)?),
            None => Arrival::new(&placement, request.info.peer(), tls, options.deadline)?,
        };
        Self::meet(&placement, options, request, arrival, Door::Mpi(door))
    }

    fn meet(
        placement: &Placement,
        options: &JoinOptions,
        request: JoinRequest,
        arrival: Arrival,
        door: Door,
    ) -> Result<Self> {
        let rank = placement.rank;
        let limit = options.deadline;
        // Sought before the rendezvous, in which it may end and leave this rank to another parent.
        let parent = Parent::find(placement.launcher);
        let (peers, streams) = arrival.meet(request, limit)?;
        registered::set_registered(placement, true);
        let members = peers.infos.iter().map(PeerInfo::peer).collect();
        let health = Arc::new(Health::watching(rank, members, options.vigilance()?));
        let hosts = Arc::new(Hosts::new(rank, &peers.infos));
        let control = Control::start(rank, streams, &health, &hosts, parent)?;
        let traffic = Arc::default();
        let member = Membership {
            rank,
            peers,
            hosts: Arc::clone(&hosts),
            health: Arc::clone(&health),
            traffic,
            limit,
        };
        let member = Arc::new(member);
        let fabric = door.into_fabric(Arc::clone(&member));
        let fabric = fabric.inspect_err(|error| health.give_up(&format!("gave up as it joined: {error}")))?;
        if matches!(options.transport, TransportKind::Shm | TransportKind::Mixed) {
            hosts.agree(
                &health,
                limit,
                |peer| probe(&member, peer),
                |locality| control.report_locality(locality),
            )?;
        }
        if options.transport == TransportKind::Shm {
            hosts.require_one_host(&health)?;
        }
        let local = (placement.local_rank, placement.local_size);
        let hosts = hosts.host_numbers();
        Ok(Self::assemble(rank, local, hosts, options.transport, fabric, Some(control)))
    }

    /// The worlds of `size` ranks that will be threads of this process, by rank.
    ///
    /// # Errors
    /// [`Error::Usage`] unless `size` is from 1 to [`MAX_RANKS`].
    pub fn threads(size: usize) -> Result<Vec<Self>> {
        limits::raise_open_files();
        if !(1..=MAX_RANKS).contains(&size) {
            let what = format!("a world of {size} ranks cannot be threads of one process");
            return Err(Error::usage(what, format!("ask for 1 to {MAX_RANKS} ranks")));
        }
        let world = |(rank, fabric): (usize, Arc<ThreadFabric>)| {
            Self::assemble(rank, (rank, size), vec![0; size], TransportKind::Thread, fabric, None)
        };
        Ok(ThreadFabric::all(size).into_iter().enumerate().map(world).collect())
    }

    fn assemble(
        rank: usize,
        local: (usize, usize),
        hosts: Vec<usize>,
        transport: TransportKind,
        fabric: Arc<dyn Fabric>,
        control: Option<Control>,
    ) -> Self {
        // Measured now rather than in the middle of the first wait.
        patience();
        let fresh = AtomicU32::new(FRESH);
        let deadline = AtomicU64::new(DEADLINE);
        World(Arc::new(Inner {
            rank,
            local,
            hosts,
            transport,
            fabric,
            open: Mutex::default(),
            fresh,
            deadline,
            control,
        }))
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.fabric.health().peers().len()
    }

    /// Rank among the ranks of this host, as the launcher said.
    pub fn local_rank(&self) -> usize {
        self.0.local.0
    }

    /// Number of ranks on this host, as the launcher said.
    pub fn local_size(&self) -> usize {
        self.0.local.1
    }

    /// The hosts of all ranks, by rank, numbered from 0 in the order in which ranks have them. Ranks are on one host if
    /// they share memory, as [`JoinOptions`] says, and all ranks count them alike; over the tcp transport, if they might.
    /// Whatever a launcher says does not count.
    pub fn hosts(&self) -> &[usize] {
        &self.0.hosts
    }

    /// How bytes travel.
    pub fn transport(&self) -> TransportKind {
        self.0.transport
    }

    /// What is known about the other ranks.
    pub fn health(&self) -> &Arc<Health> {
        self.0.fabric.health()
    }

    /// What this rank has sent so far, on all channels, headers included.
    pub fn traffic(&self) -> &Traffic {
        self.0.fabric.traffic()
    }

    /// Longest that nothing of an operation may move before it fails.
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
    /// [`Error::Usage`] if this rank has opened the channel before, [`Error::Setup`] or [`Error::System`] if a peer does
    /// not come before the join deadline.
    pub fn open(&self, channel: u16) -> Result<Rc<dyn Transport>> {
        {
            let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
            if open.contains(&channel) {
                let what = format!("channel {channel} is open already on rank {}", self.rank());
                return Err(Error::usage(what, "open each channel once, and keep its endpoint"));
            }
            open.push(channel);
        }
        self.0.fabric.open(channel).map_err(|error| self.not_opened(channel, error))
    }

    /// A channel that could not be opened: whose fault that is, and that the others need not wait for it.
    fn not_opened(&self, channel: u16, error: Error) -> Error {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|open| *open != channel);
        self.health().explain(error, During::Opening(channel))
    }

    /// A channel that nobody has opened by its number; the k-th call gives the same one on all ranks.
    ///
    /// # Errors
    /// [`Error::Usage`] once all are taken.
    pub fn fresh_channel(&self) -> Result<u16> {
        let next = self.0.fresh.fetch_add(1, Ordering::Relaxed);
        let channel = u16::try_from(next).ok();
        channel.ok_or_else(|| Error::usage("all channels are taken", "open fewer communicators"))
    }
}

/// The first half of a rendezvous: enough to know this rank's interface.
enum Arrival {
    Leader(crate::bootstrap::Listener, Secret),
    Member(LeaderConnection),
}

impl Arrival {
    fn new(placement: &Placement, mine: Peer, tls: Option<Tls>, limit: Duration) -> Result<Self> {
        let secret = Secret::of(placement)?;
        if placement.rank == 0 {
            registered::set_registered(placement, false);
            let listener = placement.rendezvous.listen(tls.clone(), placement.listen_context());
            return match listener {
                Ok(listener) => Ok(Arrival::Leader(listener, secret)),
                Err(error) => {
                    let second = Joiner { placement, mine, secret: &secret, tls: tls.as_ref(), limit };
                    Err(second.find_other_leader().unwrap_or(error))
                }
            };
        }
        let joiner = Joiner { placement, mine, secret: &secret, tls: tls.as_ref(), limit };
        joiner.connect().map(Arrival::Member)
    }

    /// Tells rank 0 why this rank does not join after all.
    fn give_up(&mut self, error: &Error) {
        if let Arrival::Member(arrival) = self {
            arrival.give_up(error);
        }
    }

    /// Where the ranks of this rendezvous can reach this one, at any port.
    fn interfaces(&self, placement: &Placement) -> Result<Vec<SocketAddr>> {
        let interfaces = match self {
            Arrival::Leader(listener, _) => listener.interfaces(&placement.rendezvous),
            Arrival::Member(arrival) => arrival.stream().interface().map(|interface| vec![interface]),
        };
        interfaces.map_err(|cause| {
            let doing = format!("tell which interface leads to {}", placement.rendezvous);
            Error::system(doing, cause, "name one in HEXAGRAM_INTERFACE")
        })
    }

    fn meet(self, mine: JoinRequest, limit: Duration) -> Result<(PeerTable, ControlStreams)> {
        match self {
            Arrival::Leader(listener, secret) => lead(listener, mine, &secret, limit),
            Arrival::Member(arrival) => join::join(arrival, mine, limit),
        }
    }
}
