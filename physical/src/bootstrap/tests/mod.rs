//! Tests of the rendezvous: complete worlds, missing or rejected ranks, and foreign connections.

mod process_exits;
mod virtual_time;

use super::handshake::answer_as;
use super::handshake::message::{MessageReader, MessageWriter};
use super::handshake::tests::another_build;
use super::handshake::{Build, authenticate_as};
use super::variables::{Launcher, Placement};
use super::*;
use crate::control::health::HeartbeatOptions;
use crate::error::Error;
use crate::testing::{self, rendezvous};
use crate::transport::TransportKind;
use crate::waiting::stopwatch::Stopwatch;
use crate::world::{JoinOptions, World};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Joins as one rank, with a deadline that tests can afford.
fn join(
    rank: usize,
    size: usize,
    rendezvous: &Rendezvous,
    secret: &[u8],
    seconds: u64,
) -> crate::Result<World> {
    join_over(TransportKind::Tcp, rank, size, rendezvous, secret, seconds)
}

fn join_over(
    transport: TransportKind,
    rank: usize,
    size: usize,
    rendezvous: &Rendezvous,
    secret: &[u8],
    seconds: u64,
) -> crate::Result<World> {
    let rendezvous = rendezvous.clone();
    let secret = secret.to_vec();
    let launcher = Launcher::Hexagram;
    let placement =
        Placement { rank, size, local_rank: rank, local_size: size, rendezvous, secret, launcher };
    let deadline = Duration::from_secs(seconds);
    World::join_as(&placement, &JoinOptions { transport, deadline, ..JoinOptions::default() })
}

/// Runs the joins of a world concurrently, and returns their errors.
fn errors(joins: Vec<Box<dyn FnOnce() -> crate::Result<World> + Send>>) -> Vec<Option<String>> {
    std::thread::scope(|scope| {
        // A world is dropped on its own thread: rank 0 waits for the others.
        let join = |join: Box<dyn FnOnce() -> crate::Result<World> + Send>| {
            join().err().map(|error| error.to_string())
        };
        let threads: Vec<_> = joins.into_iter().map(|one| scope.spawn(move || join(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn missing_ranks_are_named_at_the_deadline_on_all_ranks() {
    let place = rendezvous();
    let a = place.clone();
    let b = place;
    let errors =
        errors(vec![Box::new(move || join(0, 4, &a, b"", 3)), Box::new(move || join(2, 4, &b, b"", 3))]);
    for error in errors {
        let error = error.unwrap();
        assert!(error.contains("ranks 1, 3 of 4 did not join within 3s"), "{error}");
    }
}

/// Runs joins that must fail before their long deadline, and returns their errors.
fn quick_errors(joins: Vec<Box<dyn FnOnce() -> crate::Result<World> + Send>>) -> Vec<String> {
    let start = Instant::now();
    let errors = errors(joins).into_iter().map(|error| error.expect("an incomplete job has started"));
    let errors = errors.collect();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    errors
}

/// Returns the errors of rank 0 and of a rank 1 that differs from it in `other`, after a third rank has joined
/// properly.
fn disagreement(
    place: &Rendezvous,
    other: impl FnOnce() -> crate::Result<World> + Send + 'static,
) -> Vec<String> {
    let a = place.clone();
    let b = place.clone();
    let errors = quick_errors(vec![
        Box::new(move || join(0, 3, &a, b"key", 40)),
        Box::new(move || join(2, 3, &b, b"key", 40)),
        Box::new(other),
    ]);
    // A rank that connects after the end finds no listener.
    errors.into_iter().filter(|error| !error.contains("reach rank 0")).collect()
}

#[test]
fn a_second_claim_of_a_rank_ends_the_rendezvous_at_once() {
    let place = rendezvous();
    let a = place.clone();
    let b = place.clone();
    let c = place;
    let errors = quick_errors(vec![
        Box::new(move || join(0, 3, &a, b"", 40)),
        Box::new(move || join(1, 3, &b, b"", 40)),
        Box::new(move || join(1, 3, &c, b"", 40)),
    ]);
    let pid = format!("pid {}", std::process::id());
    for error in errors {
        assert!(error.contains("cannot join: rank 1 has joined already") && error.contains(&pid), "{error}");
        assert!(error.contains("a different number") && !error.contains("build"), "{error}");
    }
}

#[test]
fn ranks_that_were_told_different_things_are_refused_with_both_values() {
    let place = rendezvous();
    let there = place.clone();
    for error in disagreement(&place, move || join(1, 4, &there, b"key", 40)) {
        assert!(error.contains("started for 4 ranks, rank 0 for 3"), "{error}");
    }
    let place = rendezvous();
    let there = place.clone();
    for error in disagreement(&place, move || join_over(TransportKind::Shm, 1, 3, &there, b"key", 40)) {
        assert!(error.contains("transport shm, rank 0 uses tcp"), "{error}");
    }
}

#[test]
fn another_vigilance_is_refused_with_both_values() {
    let place = rendezvous();
    let join = |rank, silence| {
        let rendezvous = place.clone();
        let launcher = Launcher::Hexagram;
        let secret = b"key".to_vec();
        let placement =
            Placement { rank, size: 2, local_rank: rank, local_size: 2, rendezvous, secret, launcher };
        let heartbeat =
            Some(HeartbeatOptions { silence: Duration::from_secs(silence), ..HeartbeatOptions::default() });
        let transport = TransportKind::Tcp;
        let deadline = Duration::from_secs(40);
        let options = JoinOptions { transport, deadline, heartbeat, ..JoinOptions::default() };
        Box::new(move || World::join_as(&placement, &options)) as Box<dyn FnOnce() -> _ + Send>
    };
    for error in quick_errors(vec![join(0, 4), join(1, 60)]) {
        assert!(error.contains("rank 1 (host ") && error.contains("after 60000 ms"), "{error}");
        assert!(error.contains("rank 0 after 4000"), "{error}");
        assert!(error.contains("same options and variables"), "{error}");
    }
}

#[test]
fn another_configuration_is_refused_with_both_values() {
    for (theirs, shown) in
        [("f16, ring", "configuration is `f16, ring` (hash "), ("", "configuration is empty")]
    {
        let place = rendezvous();
        let join = |rank, configuration: &str| {
            let rendezvous = place.clone();
            let launcher = Launcher::Hexagram;
            let secret = b"key".to_vec();
            let placement =
                Placement { rank, size: 2, local_rank: rank, local_size: 2, rendezvous, secret, launcher };
            let transport = TransportKind::Tcp;
            let deadline = Duration::from_secs(40);
            let configuration = configuration.to_owned();
            let options = JoinOptions { transport, deadline, configuration, ..JoinOptions::default() };
            Box::new(move || World::join_as(&placement, &options)) as Box<dyn FnOnce() -> _ + Send>
        };
        for error in quick_errors(vec![join(0, "f32, ring"), join(1, theirs)]) {
            assert!(error.contains("its ") && error.contains(shown), "{error}");
            assert!(error.contains("rank 0's configuration is `f32, ring` (hash "), "{error}");
        }
    }
}

#[test]
fn equal_configurations_join() {
    let place = rendezvous();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let rendezvous = place.clone();
            let launcher = Launcher::Hexagram;
            let secret = b"key".to_vec();
            let placement =
                Placement { rank, size: 2, local_rank: rank, local_size: 2, rendezvous, secret, launcher };
            // Longer than the part shown in the error.
            let options = JoinOptions { configuration: "f32 ".repeat(3000), ..JoinOptions::default() };
            scope.spawn(move || World::join_as(&placement, &options).unwrap());
        }
    });
}

#[test]
fn another_build_is_refused_with_both_versions() {
    let place = rendezvous();
    let there = place.clone();
    let member = std::thread::spawn(move || {
        let patience = Duration::from_secs(10);
        let mut stream = until_there(|| there.connect(0, patience, None, &mut Stopwatch::start()));
        stream.set_timeout(patience).unwrap();
        let build = authenticate_as(another_build(), &mut stream, b"key", &[]).unwrap();
        // A request that this build cannot decode.
        MessageWriter::default().text("from the future").send(&mut stream).unwrap();
        let mut answer = MessageReader::receive(&mut stream).unwrap();
        answer.number().unwrap();
        (build, answer.text().unwrap())
    });
    let error = quick_errors(vec![Box::new(move || join(0, 2, &place, b"key", 40))]).remove(0);
    let (build, answer) = member.join().unwrap();
    assert_eq!(build, Build::MINE);
    let mine = concat!("rank 0 runs hexagram ", env!("CARGO_PKG_VERSION"), " (protocol 4)");
    for said in [error, answer] {
        assert!(said.contains("a rank cannot join: it runs hexagram 9.8.7 (protocol 77)"), "{said}");
        assert!(said.contains(mine), "{said}");
    }
}

/// Starts a rank 0 of a build that greets one member, and is silent after that. Its thread ends when the member
/// disconnects, and returns the listener.
fn start_silent_leader(build: Build) -> (Rendezvous, JoinHandle<UnixListener>) {
    let Rendezvous::Local(name) = rendezvous() else { panic!() };
    let listener = UnixListener::bind_addr(&abstract_address(&name).unwrap()).unwrap();
    let rank_0 = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        answer_as(build, &mut stream, b"key").unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
        listener
    });
    (Rendezvous::Local(name), rank_0)
}

#[test]
fn a_member_that_meets_another_build_says_so() {
    let (place, rank_0) = start_silent_leader(another_build());
    let error = quick_errors(vec![Box::new(move || join(1, 2, &place, b"key", 40))]).remove(0);
    rank_0.join().unwrap();
    assert!(error.contains("rank 0 runs hexagram 9.8.7 (protocol 77), rank 1 runs hexagram"), "{error}");
}

/// The wait for it is one read, of all the time that is left: it does not count as one short step.
#[test]
fn a_rank_0_that_greets_and_then_says_nothing_is_left_at_the_deadline() {
    let (place, rank_0) = start_silent_leader(Build::MINE);
    let error = join(1, 2, &place, b"key", 3).map(drop).unwrap_err().to_string();
    assert!(error.contains("within 3s") && error.contains("does not register this rank"), "{error}");
    let listener = rank_0.join().unwrap();
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "it has tried again");
}

#[test]
fn another_secret_is_refused_and_rank_0_says_why_it_missed_somebody() {
    let place = rendezvous();
    let a = place.clone();
    let b = place;
    let errors = errors(vec![
        Box::new(move || join(0, 2, &a, b"key", 5)),
        Box::new(move || join(1, 2, &b, b"other", 40)),
    ]);
    let contains = |at: usize, what: &str| {
        let error = errors[at].as_deref().unwrap_or("joined");
        assert!(error.contains(what), "{at}: {error}");
    };
    contains(0, "rank 1 of 2 did not join");
    let culprit = format!("rank 1 (host {}, pid ", rustix::system::uname().nodename().to_string_lossy());
    contains(0, &culprit);
    contains(0, "has a different secret: set the same HEXAGRAM_SECRET_FILE on all ranks");
    contains(1, "cannot join rank 0 at ");
    contains(1, "secrets of the job differ");
}

#[test]
fn two_ranks_0_are_named_by_every_rank() {
    for place in [rendezvous(), free_port()] {
        let joins = [0, 0, 1].map(|rank| {
            let place = place.clone();
            Box::new(move || join(rank, 3, &place, b"a secret of all", 40)) as Box<dyn FnOnce() -> _ + Send>
        });
        for error in quick_errors(joins.into()) {
            let pid = format!("pid {}", std::process::id());
            assert!(error.contains("cannot join: rank 0 has joined already, from "), "{error}");
            assert!(error.contains(&pid), "{error}");
        }
    }
}

#[test]
fn ranks_of_one_host_share_a_secret_that_nobody_gave() {
    for place in [rendezvous(), free_port()] {
        let joins = (0..3).rev().map(|rank| {
            let place = place.clone();
            Box::new(move || join(rank, 3, &place, b"", 20)) as Box<dyn FnOnce() -> _ + Send>
        });
        assert_eq!(errors(joins.collect()), [None, None, None]);
    }
}

#[test]
fn a_job_on_several_hosts_without_a_secret_is_refused_with_the_fix() {
    let elsewhere = Rendezvous::Tcp { host: "192.0.2.1".into(), port: 9, agent: false };
    let error = quick_errors(vec![Box::new(move || join(1, 2, &elsewhere, b"", 40))]).remove(0);
    assert!(error.contains("192.0.2.1:9") && error.contains("HEXAGRAM_SECRET_FILE"), "{error}");
}

fn free_port() -> Rendezvous {
    Rendezvous::Tcp { host: "127.0.0.1".into(), port: testing::free_port(), agent: false }
}

/// Calls `attempt` until it reaches a listener, and returns its result.
fn until_there<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match attempt() {
            Ok(found) => return found,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn unauthenticated_connections_disturb_nobody() {
    let place = free_port();
    let Rendezvous::Tcp { port, .. } = place else { panic!() };
    let a = place.clone();
    let b = place;
    let others = std::thread::spawn(move || {
        let connect = || until_there(|| TcpStream::connect(("127.0.0.1", port)));
        let silent = connect();
        let mut scanner = connect();
        scanner.write_all(b"GET / HTTP/1.1\r\n\r\n0123456789012345678901234567890123456789").unwrap();
        let mut answer = Vec::new();
        let _ = scanner.read_to_end(&mut answer);
        assert!(answer.is_empty(), "bytes that are no greeting are not answered");
        join(1, 2, &b, b"", 10).unwrap();
        drop(silent);
    });
    join(0, 2, &a, b"", 10).unwrap();
    others.join().unwrap();
}

#[test]
fn a_taken_port_is_one_clear_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let place = Rendezvous::Tcp { host: "127.0.0.1".into(), port, agent: false };
    let error = join(0, 2, &place, b"", 1).err().unwrap();
    assert!(matches!(error, Error::System { .. }));
    let error = error.to_string();
    assert!(error.contains(&format!("listen at 127.0.0.1:{port}, the rendezvous of all ranks")), "{error}");
    let owner = format!("process {} (", std::process::id());
    assert!(
        error.contains(&owner) && error.contains(&format!("has 127.0.0.1:{port}; end it, or ")),
        "{error}"
    );
}

#[test]
fn a_taken_name_is_one_clear_error_that_says_who_has_it_and_how_to_choose_another() {
    let Rendezvous::Local(name) = rendezvous() else { panic!() };
    let _taken = UnixListener::bind_addr(&abstract_address(&name).unwrap()).unwrap();
    let error = join(0, 2, &Rendezvous::Local(name.clone()), b"", 1).err().unwrap().to_string();
    let owner = format!("process {} (", std::process::id());
    for part in [owner.as_str(), &name, "end it, or set HEXAGRAM_ADDR=host:port"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn torchruns_port_may_be_taken_by_its_agent() {
    // Below the range from which the system gives ports to other tests.
    let free = |port: &u16| testing::reserve(port + 1).is_ok();
    let agent = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).ok().map(|agent| (port, agent));
    let start = 20_000 + std::process::id() as u16 % 5000;
    let (port, agent) = (start..30_000).filter(free).find_map(agent).unwrap();
    let place = Rendezvous::Tcp { host: "127.0.0.1".into(), port, agent: true };
    let a = place.clone();
    let b = place;
    // The agent accepts connections and answers nothing, as a store does with bytes that it cannot decode.
    let outcomes =
        errors(vec![Box::new(move || join(0, 2, &a, b"", 20)), Box::new(move || join(1, 2, &b, b"", 20))]);
    assert_eq!(outcomes, [None, None]);
    drop(agent);
}
