//! Faults as peers see them on their data connections alone.

use super::*;
use crate::control::health::GRACE;
use crate::transport::Ticket;
use crate::transport::operation::{Operation, OperationContext, Poison};

const DEADLINE: Duration = Duration::from_secs(20);

fn with_faults(cluster: Cluster, faults: &[&str]) -> Simulation {
    let faults = faults.iter().map(|fault| fault.parse().unwrap()).collect();
    Simulation { faults, ..Simulation::new(cluster) }
}

/// Waits for an operation; returns when it ended, or with which error.
fn finish(endpoint: &Rc<dyn Transport>, ticket: Ticket, peer: usize) -> (Duration, Result<()>) {
    let start = runtime::now();
    let poison = Poison::default();
    let terms = OperationContext { transport: &**endpoint, poison: &poison, deadline: DEADLINE };
    let operation = Operation::new(terms, ticket, Source::Rank(peer), label(0, 1));
    let outcome = drive::block_on(&**endpoint, operation).map(drop);
    (start.elapsed(), outcome)
}

/// Receives one byte of a rank; returns when, or with which error.
fn receive(endpoint: &Rc<dyn Transport>, from: usize) -> (Duration, Result<()>) {
    let into = Buffer::zeroed(DType::U8, 1).unwrap();
    let view = into.write_all().unwrap();
    finish(endpoint, endpoint.post_recv(Source::Rank(from), label(0, 1), view, ReceiveMode::Copy), from)
}

/// Sends one byte after a while.
fn send(endpoint: &Rc<dyn Transport>, to: usize, after: Duration) {
    runtime::sleep(after);
    let byte = Buffer::from_slice(&[1u8]).unwrap();
    let _ = finish(endpoint, endpoint.post_send(to, label(0, 1), byte.read_all().unwrap()), to);
}

/// Rank 1, on the second of two hosts, sends to rank 0 after two seconds. Returns when rank 0 received it, or its
/// error.
fn waiting(faults: &[&str]) -> (Duration, Result<()>) {
    let outcome = with_faults(cluster(2, 2), faults).run(|world| {
        let endpoint = world.open(0).unwrap();
        match world.rank() {
            0 => receive(&endpoint, 1),
            _ => {
                send(&endpoint, 0, Duration::from_secs(2));
                (Duration::ZERO, Ok(()))
            }
        }
    });
    outcome.unwrap().results.swap_remove(0)
}

fn is_around(found: Duration, expected: Duration) -> bool {
    (expected..expected + Duration::from_millis(300)).contains(&found)
}

#[test]
fn the_connection_of_a_dead_rank_breaks_and_that_of_a_stopped_one_does_not() {
    let (after, outcome) = waiting(&["1s rank 1 dies"]);
    let error = outcome.unwrap_err();
    assert!(is_around(after, Duration::from_secs(1) + GRACE), "{after:?}: {error}");
    assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 1), "{error}");
    for silent in ["1s rank 1 stops", "1s host 1 dies", "1s cut 1 -> 0", "1s cut 0 <-> 1"] {
        let (after, outcome) = waiting(&[silent]);
        let error = outcome.unwrap_err();
        assert!(is_around(after, DEADLINE), "{silent} {after:?}: {error}");
        let is_late = matches!(&error, Error::Deadline { waiting_for: Some(peer), .. } if peer.rank == 1);
        assert!(is_late, "{silent}: {error}");
    }
}

#[test]
fn what_comes_back_goes_on_where_it_was() {
    let seconds = Duration::from_secs;
    for (faults, comes) in [
        (["1s rank 1 stops", "7s rank 1 resumes"], seconds(7)),
        (["1s cut 1 -> 0", "5s heal"], seconds(5)),
        (["1s cut 0 -> 1", "5s heal"], seconds(2)),
        (["1s rank 1 stops", "1.5s rank 1 resumes"], seconds(2)),
        (["3s rank 1 dies", "4s heal"], seconds(2)),
    ] {
        let (after, outcome) = waiting(&faults);
        assert!(outcome.is_ok() && is_around(after, comes), "{faults:?} {after:?} {outcome:?}");
    }
}

#[test]
fn a_slow_link_takes_as_much_longer() {
    let bytes = 1_000_000 - HEADER_BYTES;
    let taken = |faults: &[&str]| {
        let outcome = with_faults(cluster(2, 2), faults).run(move |world| {
            let endpoint = world.open(0).unwrap();
            match world.rank() {
                0 => exchange(&endpoint, None, Some(1), 0, bytes),
                _ => exchange(&endpoint, Some(0), None, 0, bytes),
            }
        });
        outcome.unwrap().results[0]
    };
    let micros = Duration::from_micros;
    assert_eq!(taken(&["0s slow 1 to 0.1"]), micros(10_050));
    assert_eq!(taken(&["0s slow 1 to 0.1", "5ms slow 1 to 1"]), micros(5000 + 500 + 50));
    assert_eq!(taken(&["0.5ms cut 1 -> 0", "5ms heal"]), micros(5000 + 1000 + 50), "from its first byte");
}

#[test]
fn a_run_with_faults_is_like_any_other_of_its_seed() {
    let run = || {
        let jitter = "1gbit,50us,jitter=20us".parse().unwrap();
        let cluster = Cluster::flat(4, 2, jitter, jitter).unwrap();
        let simulation = with_faults(
            cluster,
            &["1s rank 2 stops", "2s cut 0 -> 1", "4s rank 2 resumes", "9s rank 3 dies"],
        );
        let outcome = simulation.run(|world| {
            let endpoint = world.open(0).unwrap();
            let rank = world.rank();
            send(&endpoint, (rank + 1) % 4, Duration::from_millis(2500));
            let (after, outcome) = receive(&endpoint, (rank + 3) % 4);
            (after, outcome.err().map(|error| error.to_string()))
        });
        outcome.unwrap()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_fault_of_nobody_is_refused() {
    for fault in ["1s rank 2 dies", "1s host 2 dies", "1s cut 0 -> 2"] {
        let error = with_faults(cluster(2, 2), &[fault]).run(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains(fault) && error.contains("does not exist") && error.contains("0 to 1"),
            "{error}"
        );
    }
}
