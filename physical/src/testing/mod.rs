//! One way to run a test on several ranks, over any transport: [`spawn`].
//!
//! The ranks are threads of the test process, but over `shm` and `tcp` they meet, connect and communicate exactly
//! like processes. For the tests of this library and of its users. The feature `testing` adds helpers for tests of
//! transports, devices and kernels.

mod device;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(any(test, feature = "testing"))]
pub mod late;
mod program;
#[cfg(any(test, feature = "testing"))]
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod transport;

pub use device::{buffer, queue, zeroed};
pub use program::check_program;
#[cfg(any(test, feature = "testing"))]
pub use store::SharedMap;

use crate::bootstrap::{Launcher, Placement, Rendezvous, random};
use crate::control::health::HeartbeatOptions;
use crate::error::Result;
use crate::system::environment::variable;
use crate::transport::TransportKind;
use crate::transport::ranks::side_by_side;
use crate::world::{JoinOptions, World};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest time for a world to form in a test.
const JOIN: Duration = Duration::from_secs(30);

/// Returns true if this process runs the deep tests (`./test deep`, which sets `HEXAGRAM_TEST_DEEP`): matrices are whole
/// there, and a sample otherwise.
pub fn is_deep() -> bool {
    variable("HEXAGRAM_TEST_DEEP").is_some_and(|deep| deep != "0")
}

/// Lists the transports of a test matrix whose ranks can be threads. On one host `mixed` is shared memory; it has
/// separate tests.
pub const TRANSPORTS: [TransportKind; 3] = [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp];

/// Lists the transports and sizes of a matrix of tests: each of [`TRANSPORTS`] with each number of `ranks`.
///
/// Unless [`is_deep`], those of 1, 2, 3 and 5 ranks, over TCP those of 2 and 3: algorithms differ for one rank, a power of
/// two, an odd number and one that leaves a remainder after the largest power of two.
///
/// In processes that `mpirun` started with `HEXAGRAM_TEST=mpi`, only the world of that job, if its size is among
/// `ranks`, so that the same tests run over MPI, one at a time (`--test-threads=1`). Standard error lists the tests
/// that run, and those that are skipped, with the reason.
///
/// With `HEXAGRAM_TEST=sim`, in a build with the feature `sim`, the ranks of a simulated cluster only.
pub fn cases(ranks: &[usize]) -> Vec<(TransportKind, usize)> {
    if is_simulated() {
        return ranks.iter().map(|ranks| (TransportKind::Sim, *ranks)).collect();
    }
    if !is_under_mpi() {
        let with = |transport| ranks.iter().map(move |ranks| (transport, *ranks));
        return TRANSPORTS.into_iter().flat_map(with).filter(|case| is_deep() || is_sampled(*case)).collect();
    }
    let size = variable("OMPI_COMM_WORLD_SIZE").and_then(|size| size.parse().ok());
    let Some(size) = size else { fail("HEXAGRAM_TEST=mpi is for processes that mpirun started") };
    if !ranks.contains(&size) {
        tell(&format!("skipped: it is for worlds of {ranks:?} ranks"));
        return Vec::new();
    }
    tell("runs");
    #[cfg(feature = "mpi")]
    return vec![(TransportKind::Mpi, size)];
    #[cfg(not(feature = "mpi"))]
    fail("HEXAGRAM_TEST=mpi is for a build with the feature `mpi`")
}

/// Returns true if a matrix that is not deep has this transport and number of ranks.
fn is_sampled((transport, ranks): (TransportKind, usize)) -> bool {
    let sample: &[usize] = if transport == TransportKind::Tcp { &[2, 3] } else { &[1, 2, 3, 5] };
    sample.contains(&ranks)
}

/// Lists the transports for tests of code that stands on the primitives, and does not depend on the transport, since
/// all give equal bits: `thread`, or [`TRANSPORTS`] if [`is_deep`].
pub fn transports() -> Vec<TransportKind> {
    if is_deep() { TRANSPORTS.to_vec() } else { vec![TransportKind::Thread] }
}

/// Lists the transports for tests whose ranks also wait for each other at a barrier of the process: [`TRANSPORTS`],
/// but none in processes that `mpirun` started with `HEXAGRAM_TEST=mpi`, and none with `HEXAGRAM_TEST=sim`.
pub fn on_threads() -> impl Iterator<Item = TransportKind> {
    let skipped = skipped_under_mpi("its ranks wait at a barrier of the process") || is_simulated();
    TRANSPORTS.into_iter().filter(move |_| !skipped)
}

/// Declares that the calling test needs ranks that are threads, and gives the reason. Returns true if the ranks are
/// processes, started by `mpirun` with `HEXAGRAM_TEST=mpi`: then the test must end immediately, and standard error
/// reports that it was skipped.
///
/// ```
/// # use hexagram_physical::testing::{skipped_under_mpi, spawn};
/// # use hexagram_physical::transport::TransportKind;
/// if skipped_under_mpi("it is about sockets") {
///     return;
/// }
/// let sizes = spawn(TransportKind::Tcp, 2, |world| world.size());
/// assert_eq!(sizes, [2, 2]);
/// ```
pub fn skipped_under_mpi(reason: &str) -> bool {
    if is_under_mpi() {
        tell(&format!("skipped: {reason}"));
    }
    is_under_mpi()
}

/// Returns true if this process runs tests on simulated ranks.
fn is_simulated() -> bool {
    cfg!(feature = "sim") && variable("HEXAGRAM_TEST").is_some_and(|what| what == "sim")
}

/// Returns true if `mpirun` has started this process to run tests over MPI.
fn is_under_mpi() -> bool {
    variable("HEXAGRAM_TEST").is_some_and(|what| what == "mpi")
}

/// Reports on standard error, once for all ranks, whether the calling test runs under MPI.
fn tell(what: &str) {
    if variable("OMPI_COMM_WORLD_RANK").is_some_and(|rank| rank != "0") {
        return;
    }
    let program = std::env::current_exe().ok().and_then(|path| Some(path.file_stem()?.display().to_string()));
    // cargo ends the name with a hash.
    let program = program.as_deref().and_then(|name| name.rsplit_once('-')).map_or("", |(name, _)| name);
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    // Not by a printing macro: the test harness shows its output for failed tests only.
    let _ = writeln!(std::io::stderr(), "under mpi: {program}::{test} {what}");
}

/// Runs `body` once per rank, each on a separate thread, and returns the results by rank.
///
/// Over MPI the ranks are processes that `mpirun` has started: `body` runs once in each, which gets its own result
/// only.
///
/// # Panics
/// If a rank panics (the others are notified, and fail rather than hang), or the world cannot be created; and if
/// ranks must be those that `mpirun` started, but `transport` is a different one: see [`skipped_under_mpi`].
pub fn spawn<R: Send>(transport: TransportKind, ranks: usize, body: impl Fn(World) -> R + Sync) -> Vec<R> {
    gather(body, |rank| spawn_each(transport, ranks, rank))
}

fn spawn_each(transport: TransportKind, ranks: usize, body: Body<'_>) {
    #[cfg(feature = "mpi")]
    if transport == TransportKind::Mpi {
        let options = JoinOptions { transport, ..options() };
        return run(vec![move || World::join(&options)], body);
    }
    #[cfg(feature = "sim")]
    if transport == TransportKind::Sim {
        return simulate(0, ranks, body);
    }
    if transport != TransportKind::Thread {
        let options = JoinOptions { transport, ..options() };
        return join_each(&vec![options; ranks], body);
    }
    refuse_under_mpi();
    match World::threads(ranks) {
        Ok(worlds) => run(worlds.into_iter().map(|world| move || Ok(world)).collect(), body),
        Err(error) => fail(error),
    }
}

/// Work of a rank. It is not a type parameter, so that starting ranks is compiled once, and not for each test.
type Body<'a> = &'a (dyn Fn(World) + Sync);

/// Returns the results of `body` on the ranks that `start` runs, by rank.
fn gather<R: Send>(body: impl Fn(World) -> R + Sync, start: impl FnOnce(Body<'_>)) -> Vec<R> {
    let results = Mutex::new(Vec::new());
    start(&|world| {
        let rank = world.rank();
        let result = body(world);
        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
        if results.len() <= rank {
            results.resize_with(rank + 1, || None);
        }
        results[rank] = Some(result);
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

/// Runs ranks like [`spawn`], simulated on one host: a seed determines the latency of messages, and the order of
/// simultaneous events.
///
/// # Panics
/// If a rank panics, or waits for an event that never comes.
#[cfg(feature = "sim")]
pub fn spawn_in_order<R: Send>(seed: u64, ranks: usize, body: impl Fn(World) -> R + Sync) -> Vec<R> {
    gather(body, |rank| simulate(seed, ranks, rank))
}

#[cfg(feature = "sim")]
fn simulate(seed: u64, ranks: usize, body: Body<'_>) {
    use crate::sim::{Cluster, LinkSpec, Simulation};
    let link =
        LinkSpec { jitter: Duration::from_micros(20), ..LinkSpec::new(1e10, Duration::from_micros(10)) };
    let simulation = Cluster::flat(ranks, 1, link, link).map(Simulation::new);
    let simulation = simulation.map(|simulation| Simulation { seed, shuffled: true, ..simulation });
    let outcome = simulation.and_then(|simulation| {
        simulation.run(|world| {
            device::take_place(world.rank());
            body(world)
        })
    });
    outcome.map_or_else(|error| fail(error), drop);
}

/// Runs ranks as [`spawn`] does, with the mixed transport, rank r pretending to run on host `hosts[r]`.
///
/// # Panics
/// Panics like [`spawn`].
pub fn spawn_hosts<R: Send>(hosts: &[usize], body: impl Fn(World) -> R + Sync) -> Vec<R> {
    let on = |host: &usize| JoinOptions { host: Some(format!("host {host} of a test")), ..options() };
    spawn_as(&hosts.iter().map(on).collect::<Vec<_>>(), body)
}

/// Runs ranks as [`spawn`] does, rank r joining with its own options.
///
/// # Panics
/// Panics like [`spawn`].
pub fn spawn_as<R: Send>(options: &[JoinOptions], body: impl Fn(World) -> R + Sync) -> Vec<R> {
    gather(body, |rank| join_each(options, rank))
}

fn join_each(options: &[JoinOptions], body: Body<'_>) {
    refuse_under_mpi();
    let size = options.len();
    let rendezvous = rendezvous();
    let join = |(rank, options): (usize, &JoinOptions)| {
        let rendezvous = rendezvous.clone();
        let options = options.clone();
        let local_rank = rank;
        let local_size = size;
        let launcher = Launcher::Hexagram;
        let secret = b"test".to_vec();
        let placement = Placement { rank, size, local_rank, local_size, rendezvous, secret, launcher };
        move || World::join_as(&placement, &options)
    };
    run(options.iter().enumerate().map(join).collect(), body)
}

fn options() -> JoinOptions {
    // A machine that is busy with other tests must not look dead.
    let heartbeat = Some(HeartbeatOptions { silence: JOIN, ..HeartbeatOptions::default() });
    JoinOptions { transport: TransportKind::Mixed, deadline: JOIN, heartbeat, ..JoinOptions::default() }
}

fn run(worlds: Vec<impl FnOnce() -> Result<World> + Send>, body: Body<'_>) {
    let ranks = side_by_side(worlds, |world| match world() {
        Ok(world) => {
            device::take_place(world.rank());
            body(world);
        }
        Err(error) => fail(error),
    });
    ranks.map_or_else(|error| fail(error), drop);
}

/// Fails under `mpirun`: every process would have its own ranks, and the test would not test MPI.
fn refuse_under_mpi() {
    if is_under_mpi() {
        fail("a test whose ranks are threads must call testing::skipped_under_mpi");
    }
}

/// Returns a port of 127.0.0.1 at which one socket may listen, and that the system gives to no other until this
/// process ends. For tests that set the rendezvous of ranks.
///
/// A port that was free a moment ago may be in use: by another test, or by a starting process with a copy of the
/// earlier socket.
pub fn free_port() -> u16 {
    reserve(0).unwrap_or_else(|error| fail(error))
}

/// Returns the number of shared-memory mappings of `bytes` bytes in this process. A test gives its memory a size that
/// no other has, as all share the process.
///
/// # Panics
/// If the system does not report it.
pub fn mappings(bytes: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_else(|error| fail(error));
    let size = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some(number(end)? - number(start)?)
    };
    maps.lines().filter(|line| line.contains("memfd:hexagram") && size(line) == Some(bytes)).count()
}

/// Runs the body of the test `name` of this program in a separate process, which runs nothing else. For a test that
/// counts the open files of its process, changes its limits, or sets state that exists once per process.
///
/// # Panics
/// If the test fails there.
pub fn in_own_process(name: &str, body: impl FnOnce()) {
    const ALONE: &str = "HEXAGRAM_TEST_ALONE";
    if variable(ALONE).is_some() {
        return body();
    }
    let program = std::env::current_exe().unwrap_or_else(|error| fail(error));
    let mut command = std::process::Command::new(program);
    let output = command.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output();
    let output = output.unwrap_or_else(|error| fail(error));
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    if !output.status.success() || !out.contains("1 passed") {
        fail(format!("{name} failed in a process of its own:\n{out}{err}"));
    }
}

/// Returns the folder of a crate, whose `CARGO_MANIFEST_DIR` is given, for a test that reads its sources. `None` if a
/// test program runs without them, as on a machine with a GPU alone (bench/gpu); standard error then reports it, and
/// the test must end.
pub fn sources(folder: &str) -> Option<PathBuf> {
    let is_there = Path::new(folder).join("Cargo.toml").exists();
    if !is_there {
        // Not by a printing macro: the test harness shows its output for failed tests only.
        let _ = writeln!(io::stderr(), "skipped: no sources here");
    }
    is_there.then(|| PathBuf::from(folder))
}

/// Returns the lengths, or other sizes, with which a test is repeated: all of them, or, under a tool that is hundreds
/// of times slower (`HEXAGRAM_TEST_SHORT=1`), three, including the last.
pub fn lengths<T: Copy>(all: &[T]) -> Vec<T> {
    if variable("HEXAGRAM_TEST_SHORT").is_none_or(|short| short == "0") || all.len() <= 3 {
        return all.to_vec();
    }
    (1..=3).map(|third| all[all.len() * third / 3 - 1]).collect()
}

/// Reserves a port of 127.0.0.1 until this process ends; 0 stands for any free one. Returns its number.
///
/// # Errors
/// The system errors, if the port is taken.
pub(crate) fn reserve(port: u16) -> io::Result<u16> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    // From now on, as it never listens itself, it leaves the port to a socket that does, and has this option too.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    let address = SocketAddr::try_from(getsockname(&socket)?)?;
    std::mem::forget(socket);
    Ok(address.port())
}

/// Returns a rendezvous that no other test has.
pub(crate) fn rendezvous() -> Rendezvous {
    match random::<16>() {
        Ok(bytes) => Rendezvous::Local(format!("hexagram-test-{:032x}", u128::from_le_bytes(bytes))),
        Err(error) => fail(error),
    }
}

#[allow(clippy::panic, reason = "a test that cannot start has failed")]
fn fail(error: impl std::fmt::Display) -> ! {
    panic!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_reserved_port_is_left_to_one_listener_and_to_nobody_else() {
        let port = free_port();
        assert_eq!(reserve(port).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        for _ in 0..2 {
            let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
            assert_eq!(reserve(port).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            // It no longer listens, even if a process still has a copy of it.
            rustix::net::shutdown(&listener, rustix::net::Shutdown::Read).unwrap();
        }
    }
}
