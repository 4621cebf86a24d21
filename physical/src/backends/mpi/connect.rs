//! Connects processes that MPI started: they learn their ranks and the rendezvous from MPI, and get communicators.
//!
//! ```text
//! rank 0 → all   announcement                          as in `bootstrap::meeting::announcement`: where rank 0 listens
//! both     on the channel's tag: nothing               this rank is opening this channel
//! ```

use super::collectives::MpiCollectives;
use super::endpoint::{EndpointParts, MpiEndpoint};
use super::library;
use super::library::{MpiStartup, check};
use super::link::{MpiComm, RequestSet};
use crate::bootstrap::meeting::announcement;
use crate::bootstrap::meeting::announcement::Surroundings;
use crate::bootstrap::sockets::reachable;
use crate::bootstrap::{Launcher, Listener, Placement};
use crate::control::health::Health;
use crate::error::{Error, Result};
use crate::runtime;
use crate::transport::native::Check;
use crate::transport::{
    Backend, Fabric, Introduction, Membership, Prepared, Site, Traffic, Transport, TransportKind,
};
use crate::waiting::spin_budget::crowded;
use crate::waiting::stopwatch::Stopwatch;
use crate::world::JoinOptions;
use mpi::ffi;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Number of lanes of a channel with MPI collectives.
const LANES: usize = 16;

/// Bytes of rank 0's announcement, longer than any.
const ANNOUNCEMENT: usize = 4096;

/// Pause between two polls of MPI during start-up.
const TICK: Duration = Duration::from_micros(200);

/// Transport over MPI, which assigns the ranks itself.
pub(crate) struct MpiBackend;

impl Backend for MpiBackend {
    fn prepare(&self, _site: &Site<'_>) -> Result<Box<dyn Prepared>> {
        Err(Error::setup(
            "ranks of the mpi transport learn the rendezvous from MPI",
            "start them with mpirun",
        ))
    }

    fn introduce(&self, options: &JoinOptions) -> Result<Option<Introduction>> {
        // Invalid options of this rank fail before the others wait for it in MPI.
        options.tls()?;
        let check = options.check.map_or_else(Check::from_env, Ok)?;
        introduce(check, options.interface()?, options.deadline).map(Some)
    }
}

/// Communicator of one world.
struct MpiPrepared {
    comm: MpiComm,
    check: Check,
}

impl Prepared for MpiPrepared {
    /// Returns nothing: MPI has connected the ranks.
    fn announcement(&self) -> Vec<u8> {
        Vec::new()
    }

    fn connect(self: Box<Self>, member: Arc<Membership>) -> Result<Arc<dyn Fabric>> {
        library::world_joined();
        Ok(Arc::new(MpiFabric { prepared: *self, member }))
    }
}

/// Asks MPI for this rank and for the rendezvous, which rank 0 opens.
fn introduce(check: Check, asked: Option<SocketAddr>, limit: Duration) -> Result<Introduction> {
    /// Held while a world is joined: worlds that are joined at the same time in one process would mix.
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let library = MpiStartup::get()?;
    agrees_with_variables(library)?;
    let _alone = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    library::world_starting();
    let comm = world_of_its_own(limit)?;
    let one_host = library.local.1 == library.size;
    let peers = if one_host { Vec::new() } else { gather_addresses(comm, library.size, limit)? };
    let (listener, announced) =
        if library.rank == 0 { announce(library, asked, &peers) } else { (Ok(None), Vec::new()) };
    let announced = broadcast(comm, announced, limit)?;
    let (rendezvous, secret) = announcement::read(&announced)?;
    let (local_rank, local_size) = library.local;
    let rank = library.rank;
    let size = library.size;
    let launcher = Launcher::OpenMpi;
    let placement = Placement { rank, size, local_rank, local_size, rendezvous, secret, launcher };
    Ok(Introduction { placement, listener: listener?, prepared: Box::new(MpiPrepared { comm, check }) })
}

/// Refuses a rank for MPI that differs from that in the launcher's variables.
fn agrees_with_variables(library: &MpiStartup) -> Result<()> {
    let rank = library.rank;
    let size = library.size;
    match Placement::claimed()? {
        Some((theirs, of, launcher)) if (theirs, of) != (rank, size) => Err(Error::setup(
            format!(
                "this is rank {rank} of {size} in MPI, and rank {theirs} of {of} in the {launcher} variables"
            ),
            "start the ranks with the mpirun of the MPI that this program was built with",
        )),
        _ => Ok(()),
    }
}

/// Waits until all requests of a set are complete.
fn wait<H>(
    requests: &mut RequestSet<H>,
    doing: &str,
    limit: Duration,
    health: Option<&Health>,
) -> Result<()> {
    let mut waited = Stopwatch::start();
    let failed = || health.is_some_and(|health| health.verdict().is_some());
    while requests.pending() > 0 {
        if requests.test()?.is_some() {
            continue;
        }
        if waited.elapsed() > limit || failed() {
            let what = if failed() { "a rank failed" } else { "not all ranks took part" };
            let remedy = "join the same worlds and open the same channels on all ranks, in time";
            return Err(Error::setup(format!("cannot {doing} within {limit:?}: {what}"), remedy));
        }
        // MPI has no event to wait for.
        runtime::sleep(TICK);
    }
    Ok(())
}

/// Creates a communicator that only this world uses.
fn world_of_its_own(limit: Duration) -> Result<MpiComm> {
    // SAFETY: a constant of the library.
    let world = unsafe { ffi::RSMPI_COMM_WORLD };
    // On the heap, since MPI may write it after this rank has given up.
    let mut requests = RequestSet::new(Box::new(world));
    // SAFETY: the request set owns the handle that MPI writes.
    unsafe {
        requests.start("duplicate MPI's world", |copy, request| {
            ffi::MPI_Comm_idup(world, &raw mut **copy, request)
        })?;
    }
    wait(&mut requests, "join a world by MPI", limit, None)?;
    let comm = MpiComm(**requests.held());
    // SAFETY: no other code has this communicator. Communicators derived from it inherit that errors are returned.
    let code = unsafe { ffi::MPI_Comm_set_errhandler(comm.0, ffi::RSMPI_ERRORS_RETURN) };
    check("have MPI return its errors", code).map(|()| comm)
}

/// Opens rank 0's listener. Returns it with the announcement to the other ranks, which is made even if it could not be
/// opened.
fn announce(
    library: &MpiStartup,
    asked: Option<SocketAddr>,
    peers: &[IpAddr],
) -> (Result<Option<Listener>>, Vec<u8>) {
    let (_, on_this_host) = library.local;
    match announcement::open(&Surroundings { one_host: on_this_host == library.size, asked, peers }) {
        Ok((listener, announced)) => (Ok(Some(listener)), announced),
        Err(error) => {
            let announced = announcement::failure(&error);
            (Err(error), announced)
        }
    }
}

/// Broadcasts rank 0's `announced` to all ranks.
fn broadcast(comm: MpiComm, mut announced: Vec<u8>, limit: Duration) -> Result<Box<[u8]>> {
    announced.resize(ANNOUNCEMENT, 0);
    let mut requests = RequestSet::new(announced.into_boxed_slice());
    // SAFETY: the request set owns the bytes.
    unsafe {
        requests.start("broadcast by MPI", |bytes, request| {
            let bytes = bytes.as_mut_ptr().cast();
            let length = ANNOUNCEMENT as c_int;
            ffi::MPI_Ibcast(bytes, length, ffi::RSMPI_UINT8_T, 0, comm.0, request)
        })?;
    }
    wait(&mut requests, "announce the rendezvous to all ranks", limit, None)?;
    Ok(std::mem::take(requests.held()))
}

/// Gathers the addresses of all ranks' hosts on all ranks.
fn gather_addresses(comm: MpiComm, ranks: usize, limit: Duration) -> Result<Vec<IpAddr>> {
    let mine = reachable::to_bytes(&reachable::own());
    let all = vec![0; mine.len() * ranks];
    let mut requests = RequestSet::new((mine, all));
    // SAFETY: the request set owns both sides, and the second holds the size of the first for each rank.
    unsafe {
        requests.start("gather by MPI", |(mine, all), request| {
            let count = mine.len() as c_int;
            let kind = ffi::RSMPI_UINT8_T;
            let mine = mine.as_ptr().cast();
            let all = all.as_mut_ptr().cast();
            ffi::MPI_Iallgather(mine, count, kind, all, count, kind, comm.0, request)
        })?;
    }
    wait(&mut requests, "exchange addresses", limit, None)?;
    Ok(reachable::from_bytes(&requests.held().1))
}

/// Opens channels over MPI.
struct MpiFabric {
    prepared: MpiPrepared,
    member: Arc<Membership>,
}

impl MpiFabric {
    /// Waits until all of `ranks` are about to open this channel, so that the following calls do not block.
    fn assemble(&self, channel: u16, ranks: &[usize]) -> Result<()> {
        let mut requests = RequestSet::new(());
        let comm = self.prepared.comm;
        for peer in ranks.iter().copied().filter(|peer| *peer != self.member.rank) {
            // SAFETY: no byte is sent, and none received.
            unsafe {
                comm.receive(Some(peer), channel.into(), &mut requests, |()| (ptr::null_mut(), 0))?;
                comm.send(peer, channel.into(), &mut requests, |()| (ptr::null(), 0))?;
            }
        }
        wait(&mut requests, &format!("open channel {channel}"), self.member.limit, Some(&self.member.health))
    }
}

impl Fabric for MpiFabric {
    fn open(&self, channel: u16, ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        let library = MpiStartup::get()?;
        if c_int::from(channel) > library.largest_tag {
            let what = format!("channel {channel} is above this MPI's largest tag, {}", library.largest_tag);
            return Err(Error::usage(what, "choose a smaller number"));
        }
        self.assemble(channel, ranks)?;
        let comm = self.prepared.comm.among(ranks, channel.into())?;
        // MPI's collectives are for all ranks of the world.
        let lanes = if ranks.len() == self.member.size() { LANES } else { 0 };
        let lanes = (0..lanes).map(|_| comm.duplicate()).collect::<Result<_>>()?;
        let parts = EndpointParts {
            comm,
            ranks: ranks.into(),
            rank: self.member.rank,
            size: self.member.size(),
            largest_tag: library.largest_tag,
            crowded: crowded(library.local.1),
            collectives: MpiCollectives::new(
                self.member.size(),
                lanes,
                self.prepared.check,
                library.in_place.is_some(),
            ),
            health: Arc::clone(&self.member.health),
            tally: self.member.traffic.tally(TransportKind::Mpi),
        };
        Ok(Rc::new(MpiEndpoint::new(parts)?))
    }

    fn health(&self) -> &Arc<Health> {
        &self.member.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.member.traffic
    }

    fn leave(&self) {
        library::world_left(self.member.health.verdict().is_none());
    }
}
