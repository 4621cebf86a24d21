//! From options to a world: prepares the transport, meets the other ranks, connects.

use super::variables::{check_environment, warn_of_unknown};
use super::{Elastic, JoinOptions, World};
use crate::backends::backend;
use crate::backends::socket::Tls;
use crate::bootstrap::handshake::secret::Secret;
use crate::bootstrap::hosts::WorldHosts;
use crate::bootstrap::meeting::peer_info::{JoinRequest, PeerInfo, PeerTable, TransportLimits};
use crate::bootstrap::meeting::rendezvous_leader::lead;
use crate::bootstrap::meeting::rendezvous_member::{ControlStreams, Joiner, LeaderConnection};
use crate::bootstrap::meeting::{attendance_file, rendezvous_member};
use crate::bootstrap::parent::Parent;
use crate::bootstrap::stores::launcher_store::LauncherStore;
use crate::bootstrap::stores::store::{LATE, Met, StoreMeeting};
use crate::bootstrap::{Launcher, Listener, Placement, Store};
use crate::control::Control;
use crate::control::health::Health;
use crate::elastic::generation::Generation;
use crate::elastic::link::MembershipLink;
use crate::error::{Error, Peer, Result};
use crate::system::limits;
use crate::transport::{
    ANNOUNCEMENT_BYTES, Backend, Fabric, Introduction, Membership, Prepared, Sharing, Site,
};
use crate::waiting::deadline;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Longest time between the failure of a rank, which another one sees, and the notice of it by the launcher.
const CHANGE_NOTICE: Duration = Duration::from_secs(2);

/// Joins at the place of the transport or, if it knows none, of the launcher variables.
pub(super) fn join(options: &JoinOptions) -> Result<World> {
    if let Some(link) = MembershipLink::of_process()? {
        return join_next(&link, options);
    }
    let backend = begin(options)?;
    if let Some(introduction) = backend.introduce(options)? {
        return join_introduced(introduction, options, &*backend);
    }
    if let Some((rank, size)) = Placement::without_address()?
        && let Some(store) = LauncherStore::open(options.deadline)?
    {
        let meeting = meeting(&store, rank, size, options);
        let joined = join_at_store(&meeting, options, &*backend, None);
        store.finish();
        return joined;
    }
    let placement = Placement::from_env()?.ok_or_else(|| {
        Error::setup(
            "no launcher has set the rank of this process",
            "start it with `hexagram run -n 4 -- PROGRAM`, mpirun, srun or torchrun",
        )
    })?;
    join_placed(&placement, options, &*backend)
}

/// Joins the next generation of an elastic job. If its members change before all have met, joins the one after it. Also does
/// so once if they have not met without a change: a process may be stopped, and the launcher kills it then.
pub(super) fn join_next(link: &Arc<MembershipLink>, options: &JoinOptions) -> Result<World> {
    let backend = begin(options)?;
    if backend.introduce(options)?.is_some() {
        let what =
            format!("the {} transport numbers its ranks itself, so they cannot change", options.transport);
        return Err(Error::setup(what, "use the transport mixed, shm or tcp, or start without --elastic"));
    }
    let mut has_retried = false;
    loop {
        let generation = link.next_generation(options.deadline)?;
        let meeting = meeting(&*generation, generation.rank, generation.size, options);
        match join_at_store(&meeting, options, &*backend, Some(&generation)) {
            Err(error)
                if generation.ends_within(CHANGE_NOTICE) || !std::mem::replace(&mut has_retried, true) =>
            {
                tracing::debug!("generation {} has ended while its ranks joined: {error}", generation.number);
            }
            outcome => return outcome,
        }
    }
}

/// Joins at a known place, which must agree with that of the transport, if it knows one.
pub(super) fn join_as(placement: &Placement, options: &JoinOptions) -> Result<World> {
    let backend = begin(options)?;
    let Some(introduction) = backend.introduce(options)? else {
        return join_placed(placement, options, &*backend);
    };
    agreeing(join_introduced(introduction, options, &*backend)?, placement.rank, placement.size)
}

/// Returns a world that the transport has numbered, unless the program numbers its ranks otherwise.
fn agreeing(world: World, rank: usize, size: usize) -> Result<World> {
    if (world.rank(), world.size()) == (rank, size) {
        return Ok(world);
    }
    let transport = world.transport();
    let what = format!(
        "rank {rank} of {size} is rank {} of {} to the {transport} transport",
        world.rank(),
        world.size()
    );
    Err(Error::setup(what, "use the rank numbers of the launcher"))
}

/// Joins the ranks that meet through a store.
pub(super) fn join_through(
    store: &dyn Store,
    rank: usize,
    size: usize,
    options: &JoinOptions,
) -> Result<World> {
    check_rank(rank, size)?;
    let backend = begin(options).inspect_err(|error| meeting(store, rank, size, options).give_up(error))?;
    if let Some(introduction) = backend.introduce(options)? {
        return agreeing(join_introduced(introduction, options, &*backend)?, rank, size);
    }
    join_at_store(&meeting(store, rank, size, options), options, &*backend, None)
}

fn meeting<'a>(store: &'a dyn Store, rank: usize, size: usize, options: &JoinOptions) -> StoreMeeting<'a> {
    StoreMeeting { store, rank, size, limit: options.deadline, late: LATE }
}

/// Joins over a transport without its own place, through a store.
fn join_at_store(
    meeting: &StoreMeeting<'_>,
    options: &JoinOptions,
    backend: &dyn Backend,
    generation: Option<&Arc<Generation>>,
) -> Result<World> {
    let ready = || {
        let Met { placement, listener, announcement } = meeting.meet(options.interface()?)?;
        let joining = prepare(&placement, listener, options, backend, generation)?;
        meeting.announce(&announcement)?;
        Ok((placement, joining))
    };
    let (placement, joining) = ready().inspect_err(|error| meeting.give_up(error))?;
    let joined = meet(&placement, options, joining);
    meeting.clear();
    joined
}

/// Makes all checks that need no other rank, and returns the backend of the transport.
fn begin(options: &JoinOptions) -> Result<Arc<dyn Backend>> {
    check_environment()?;
    options.check()?;
    limits::raise_open_files();
    backend(options.transport)
}

/// Fails unless the rank of a place belongs to its world. Warns of unknown variables if this rank is the one to do
/// so.
fn check_place(placement: &Placement) -> Result<()> {
    warn_of_unknown(Some(placement));
    check_rank(placement.rank, placement.size)
}

/// Fails unless there is such a rank.
fn check_rank(rank: usize, size: usize) -> Result<()> {
    if rank < size {
        return Ok(());
    }
    Err(Error::setup(
        format!("rank {rank} does not exist in a world of {size}"),
        "ranks count from 0 to size - 1",
    ))
}

/// Joins at a place that the transport does not know.
fn join_placed(placement: &Placement, options: &JoinOptions, backend: &dyn Backend) -> Result<World> {
    meet(placement, options, prepare(placement, None, options, backend, None)?)
}

/// Joins over the transport of a simulated cluster, as a process that `mine` names.
#[cfg(feature = "sim")]
pub(super) fn join_on(
    placement: &Placement,
    options: &JoinOptions,
    backend: &dyn Backend,
    mine: &Peer,
) -> Result<World> {
    options.check()?;
    let mut request = JoinRequest::new(placement, options)?;
    request.info = PeerInfo {
        rank: mine.rank,
        pid: mine.pid,
        host: Arc::clone(&mine.host),
        kernel: Arc::clone(&mine.host),
        machine: Arc::clone(&mine.host),
        announcement: Arc::default(),
    };
    let side = Side::with(None, placement, mine.clone(), None, options.deadline, &never)?;
    let prepared = backend.prepare(&Site { placement, options, interfaces: &[], tls: None })?;
    meet(placement, options, Joining { request, side, prepared, backend, generation: None })
}

/// Prepares the transport at a place that it does not know. Rank 0 may already have a `listener`.
fn prepare<'a>(
    placement: &Placement,
    listener: Option<Listener>,
    options: &JoinOptions,
    backend: &'a dyn Backend,
    generation: Option<&Arc<Generation>>,
) -> Result<Joining<'a>> {
    check_place(placement)?;
    let asked = options.interface()?;
    let tls = options.tls()?;
    let mut request = JoinRequest::new(placement, options)?;
    let is_over = || generation.is_some_and(|generation| generation.is_over());
    let mine = request.info.peer();
    let mut side = Side::with(listener, placement, mine, tls.clone(), options.deadline, &is_over)?;
    let prepare = || {
        let interfaces =
            asked.map_or_else(|| side.interfaces(placement, options.deadline), |asked| Ok(vec![asked]))?;
        let site = Site { placement, options, interfaces: &interfaces, tls: tls.as_ref() };
        let prepared = backend.prepare(&site)?;
        announcement(&*prepared).map(|announcement| (prepared, announcement))
    };
    let (prepared, announcement) = prepare().inspect_err(|error| side.give_up(error))?;
    request.info.announcement = announcement;
    Ok(Joining { request, side, prepared, backend, generation: generation.cloned() })
}

/// Joins at the place that the transport reports.
fn join_introduced(
    introduction: Introduction,
    options: &JoinOptions,
    backend: &dyn Backend,
) -> Result<World> {
    let Introduction { placement, listener, prepared } = introduction;
    check_place(&placement)?;
    let tls = options.tls()?;
    let mut request = JoinRequest::new(&placement, options)?;
    let side = Side::with(listener, &placement, request.info.peer(), tls, options.deadline, &never)?;
    request.info.announcement = announcement(&*prepared)?;
    meet(&placement, options, Joining { request, side, prepared, backend, generation: None })
}

/// Returns the announcement of a transport, if it is short enough for every rank to receive all of them.
fn announcement(prepared: &dyn Prepared) -> Result<Arc<[u8]>> {
    let announcement = prepared.announcement();
    if announcement.len() > ANNOUNCEMENT_BYTES {
        let what = format!("the transport announces {} bytes to its peers", announcement.len());
        return Err(Error::setup(what, format!("announce {ANNOUNCEMENT_BYTES} at most")));
    }
    Ok(announcement.into())
}

/// A rank that is ready for the rendezvous.
struct Joining<'a> {
    request: JoinRequest,
    side: Side,
    prepared: Box<dyn Prepared>,
    backend: &'a dyn Backend,
    /// Generation that the rank joins, in an elastic job.
    generation: Option<Arc<Generation>>,
}

/// Meets the other ranks, and connects with them.
fn meet(placement: &Placement, options: &JoinOptions, joining: Joining<'_>) -> Result<World> {
    let Joining { request, side, prepared, backend, generation } = joining;
    let rank = placement.rank;
    let limit = options.deadline;
    // Looked up before the rendezvous, during which it may end and leave this rank to another parent.
    let parent = Parent::find(placement.launcher);
    let reach = TransportLimits {
        must_share_memory: backend.sharing() == Sharing::Required,
        loopback_only: &|announcement| backend.loopback_only(announcement),
    };
    let is_over = || generation.as_ref().is_some_and(|generation| generation.is_over());
    let (peers, streams) = side.meet(request, reach, limit, &is_over)?;
    attendance_file::set_registered(placement, true);
    let members = peers.infos.iter().map(PeerInfo::peer).collect();
    let number = generation.as_ref().map(|generation| generation.number);
    let health = Arc::new(Health::watching(rank, members, options.heartbeat()?, number));
    if let Some(generation) = &generation {
        generation.attach(&health);
    }
    let hosts = Arc::new(WorldHosts::new(rank, &peers.infos));
    let control = Control::start(rank, streams, &health, &hosts, parent)?;
    let announcements = peers.infos.iter().map(|info| Arc::clone(&info.announcement)).collect();
    let member = Arc::new(Membership {
        rank,
        peers: Arc::new(peers),
        announcements,
        hosts: Arc::clone(&hosts),
        health: Arc::clone(&health),
        traffic: Arc::default(),
        // A rank may load its data before it opens a channel, as before any other operation.
        limit: limit.max(deadline::at_first()),
    });
    let fabric = prepared.connect(member);
    let fabric = fabric.inspect_err(|error| health.fail_self(&format!("gave up while joining: {error}")))?;
    find_hosts(&*fabric, backend.sharing(), &hosts, &health, &control, limit)?;
    let numbers = hosts.host_numbers();
    let local = local_place(placement, &numbers);
    let elastic = generation.map(|generation| Elastic { generation, options: options.clone() });
    Ok(World::assemble(rank, local, numbers.into(), options.transport, fabric, Some(control), elastic))
}

/// Returns false: the members of a job that is not elastic stay.
fn never() -> bool {
    false
}

/// Returns the rank on its host, and the number of ranks on that host: those of the launcher, if it knows them.
fn local_place(placement: &Placement, hosts: &[usize]) -> (usize, usize) {
    match placement.launcher {
        Launcher::Store => place_on_host(placement.rank, hosts),
        _ => (placement.local_rank, placement.local_size),
    }
}

/// Returns the local rank of `rank` on its host, and the number of ranks on that host.
fn place_on_host(rank: usize, hosts: &[usize]) -> (usize, usize) {
    let here = |ranks: &[usize]| ranks.iter().filter(|host| **host == hosts[rank]).count();
    (here(&hosts[..rank]), here(hosts))
}

/// Agrees with all ranks on which of them share memory, if the transport uses that.
fn find_hosts(
    fabric: &dyn Fabric,
    sharing: Sharing,
    hosts: &WorldHosts,
    health: &Health,
    control: &Control,
    limit: Duration,
) -> Result<()> {
    if sharing == Sharing::None {
        return Ok(());
    }
    hosts.agree(
        health,
        limit,
        |peer| fabric.probe_memory(peer),
        |locality| control.report_locality(locality),
    )?;
    if sharing == Sharing::Required {
        hosts.require_one_host(health)?;
    }
    Ok(())
}

/// This rank's side of the rendezvous, once it has proved to belong to the job.
enum Side {
    Leader(Listener, Secret),
    Member(LeaderConnection),
}

impl Side {
    /// Returns the side of rank 0 with a `listener`, or that of a rank that must still find its own.
    fn with(
        listener: Option<Listener>,
        placement: &Placement,
        mine: Peer,
        tls: Option<Tls>,
        limit: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let secret = Secret::of(placement, limit)?;
        if let Some(listener) = listener {
            return Ok(Side::Leader(listener.with_tls(tls), secret));
        }
        let joiner = Joiner { placement, mine, secret: &secret, tls: tls.as_ref(), limit, is_over };
        if placement.rank > 0 {
            return joiner.connect().map(Side::Member);
        }
        attendance_file::set_registered(placement, false);
        match placement.rendezvous.listen(tls.clone(), placement.listen_context(limit)) {
            Ok(listener) => Ok(Side::Leader(listener, secret)),
            Err(error) => Err(joiner.find_other_leader().unwrap_or(error)),
        }
    }

    /// Notifies rank 0 that this rank does not join, with the reason.
    fn give_up(&mut self, error: &Error) {
        if let Side::Member(connection) = self {
            connection.give_up(error);
        }
    }

    /// Returns the addresses at which the ranks of this rendezvous can reach this one, with port 0.
    fn interfaces(&self, placement: &Placement, limit: Duration) -> Result<Vec<SocketAddr>> {
        let interfaces = match self {
            Side::Leader(listener, _) => placement.rendezvous.interfaces(listener, limit),
            Side::Member(connection) => connection.stream().interface().map(|interface| vec![interface]),
        };
        interfaces.map_err(|cause| {
            let doing = format!("find the interface to {}", placement.rendezvous);
            Error::system(doing, cause, "set HEXAGRAM_INTERFACE")
        })
    }

    fn meet(
        self,
        mine: JoinRequest,
        reach: TransportLimits<'_>,
        limit: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(PeerTable, ControlStreams)> {
        match self {
            Side::Leader(listener, secret) => lead(listener, mine, reach, &secret, limit, is_over),
            Side::Member(connection) => rendezvous_member::join(connection, mine, limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Rendezvous;
    use crate::transport::TransportKind;

    /// A transport of another crate, which gives this process a place.
    struct Introducing(usize, usize);

    impl Backend for Introducing {
        fn prepare(&self, _: &Site<'_>) -> Result<Box<dyn Prepared>> {
            Err(Error::usage("it introduces itself", "see `introduce`"))
        }

        fn introduce(&self, _: &JoinOptions) -> Result<Option<Introduction>> {
            let Introducing(rank, size) = *self;
            let placement = Placement {
                rank,
                size,
                local_rank: rank,
                local_size: size,
                rendezvous: Rendezvous::Local("hexagram-nobody".to_owned()),
                secret: Vec::new(),
                launcher: Launcher::Hexagram,
            };
            Ok(Some(Introduction::new(placement, Box::new(Announced))))
        }
    }

    struct Announced;

    impl Prepared for Announced {
        fn announcement(&self) -> Vec<u8> {
            Vec::new()
        }

        fn connect(self: Box<Self>, _: Arc<Membership>) -> Result<Arc<dyn Fabric>> {
            Err(Error::usage("nobody is there", "see the test"))
        }
    }

    #[test]
    fn a_place_that_is_none_is_refused_whoever_gives_it() {
        for (name, rank, size) in [("place-two-of-two", 2, 2), ("place-of-nobody", 0, 0)] {
            let transport = crate::transport::register(name, Introducing(rank, size)).unwrap();
            let options = JoinOptions { transport, ..JoinOptions::default() };
            let error = join(&options).map(drop).unwrap_err();
            let expected = format!("rank {rank} does not exist in a world of {size}");
            assert!(
                matches!(&error, Error::Setup { .. }) && error.to_string().contains(&expected),
                "{error}"
            );
        }
    }

    #[test]
    fn options_that_cannot_be_are_refused_before_anybody_is_waited_for() {
        let default = JoinOptions::default;
        for (options, expected) in [
            (JoinOptions { sockets: Some(0), transport: TransportKind::Shm, ..default() }, "use 1 to 16"),
            (JoinOptions { interface: Some("no-such-0".into()), ..default() }, "no-such-0"),
        ] {
            let error = join(&options).map(drop).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
