//! The time of a simulated message, and that runs are reproducible.

mod faults;
mod jobs;

use super::*;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::runtime;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::tag::Tag;
use crate::transport::{HEADER_BYTES, Label, ReceiveMode, Source, Transport, TransportKind};
use crate::waiting::drive;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

fn cluster(ranks: usize, hosts: usize) -> Cluster {
    Cluster::flat(ranks, hosts, "8gbit,50us".parse().unwrap(), "80gbit,2us".parse().unwrap()).unwrap()
}

fn label(sequence: u64, count: usize) -> Label {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::U8, count);
    Label { tag: Tag::new(0, 0, sequence, 0).unwrap(), fingerprint }
}

/// Sends and receives this many bytes, and returns when both are done.
fn exchange(
    endpoint: &Rc<dyn Transport>,
    to: Option<usize>,
    from: Option<usize>,
    sequence: u64,
    bytes: usize,
) -> Duration {
    let start = runtime::now();
    let out = Buffer::from_slice(&vec![endpoint.rank() as u8; bytes]).unwrap();
    let into = Buffer::zeroed(DType::U8, bytes).unwrap();
    let label = label(sequence, bytes);
    let sent = to.map(|to| endpoint.post_send(to, label, out.read_all().unwrap()));
    let got = from.map(|from| {
        endpoint.post_recv(Source::Rank(from), label, into.write_all().unwrap(), ReceiveMode::Copy)
    });
    for ticket in sent.into_iter().chain(got) {
        drive::block_on(&**endpoint, poll_fn(|context| endpoint.poll(ticket, context))).unwrap();
    }
    if let Some(from) = from {
        assert!(into.host::<u8>().unwrap().iter().all(|byte| *byte == from as u8));
    }
    start.elapsed()
}

#[test]
fn a_message_takes_its_bytes_over_the_bandwidth_and_a_latency() {
    let bytes = 1_000_000 - HEADER_BYTES;
    let run = |to: usize| {
        let outcome = Simulation::new(cluster(4, 2)).run(move |world| {
            let endpoint = world.open(0).unwrap();
            match world.rank() {
                0 => exchange(&endpoint, Some(to), None, 0, bytes),
                rank if rank == to => exchange(&endpoint, None, Some(0), 0, bytes),
                _ => Duration::ZERO,
            }
        });
        outcome.unwrap().results
    };
    let micros = Duration::from_micros;
    assert_eq!(run(3)[3], micros(1000 + 50), "between hosts");
    assert_eq!(run(3)[0], micros(1000), "the sender gets its memory back when the last byte has left");
    assert_eq!(run(1)[1], micros(100 + 2), "on one host");
}

#[test]
fn ranks_of_a_host_share_its_link() {
    let bytes = 1_000_000 - HEADER_BYTES;
    let outcome = Simulation::new(cluster(4, 2)).run(move |world| {
        let endpoint = world.open(0).unwrap();
        let other = (world.rank() + 2) % 4;
        exchange(&endpoint, Some(other), Some(other), 0, bytes)
    });
    // Two ranks send and two receive on each, and both directions are free.
    assert_eq!(outcome.unwrap().results, [Duration::from_micros(2050); 4]);
}

#[test]
fn what_stays_on_a_host_is_counted_apart() {
    let outcome = Simulation::new(cluster(4, 2)).run(|world| {
        let endpoint = world.open(0).unwrap();
        let next = world.rank() ^ 1;
        let other = world.rank() ^ 2;
        exchange(&endpoint, Some(next), Some(next), 0, 100);
        exchange(&endpoint, Some(other), Some(other), 1, 20);
        let by = |path| world.traffic().payload_sent_by(path);
        (world.traffic().payload_sent(), by(TransportKind::Shm), by(TransportKind::Sim))
    });
    assert_eq!(outcome.unwrap().results, [(120, 100, 20); 4]);
}

fn ring(seed: u64, shuffled: bool, link: &str) -> Outcome<Duration> {
    let cluster = Cluster::flat(6, 3, link.parse().unwrap(), "80gbit,2us".parse().unwrap()).unwrap();
    let simulation = Simulation { seed, shuffled, ..Simulation::new(cluster) };
    let outcome = simulation.run(|world| {
        let endpoint = world.open(0).unwrap();
        let rank = world.rank();
        let size = world.size();
        let steps = (0..20).map(|step| {
            exchange(
                &endpoint,
                Some((rank + 1) % size),
                Some((rank + size - 1) % size),
                step,
                1000 * (step as usize + 1),
            )
        });
        steps.sum()
    });
    outcome.unwrap()
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let jitter = "1gbit,50us,jitter=20us";
    assert_eq!(ring(1, false, jitter), ring(1, false, jitter));
    assert_ne!(ring(1, false, jitter).fingerprint, ring(2, false, jitter).fingerprint);
    assert_eq!(ring(1, false, "1gbit,50us"), ring(2, false, "1gbit,50us"), "nothing is drawn");
    assert_ne!(ring(1, true, "1gbit,50us").fingerprint, ring(2, true, "1gbit,50us").fingerprint);
}

/// Returns the delay beyond the latency of 50 us of each of 2000 messages, in microseconds.
fn lateness(drawn: &str) -> Vec<f64> {
    let link = format!("1000gbit,50us,{drawn}").parse().unwrap();
    let cluster = Cluster::flat(2, 2, link, "80gbit,2us".parse().unwrap()).unwrap();
    let outcome = Simulation::new(cluster).run(|world| {
        let endpoint = world.open(0).unwrap();
        let start = runtime::now();
        let late = |step: u64| {
            let due = Duration::from_millis(step);
            if world.rank() == 0 {
                runtime::sleep(due.saturating_sub(start.elapsed()));
                exchange(&endpoint, Some(1), None, step, 1);
                return 0.0;
            }
            exchange(&endpoint, None, Some(0), step, 1);
            (start.elapsed() - due).as_secs_f64() * 1e6 - 50.0
        };
        (0..2000).map(late).collect()
    });
    outcome.unwrap().results.remove(1)
}

#[test]
fn messages_are_late_by_what_their_link_says_once_a_way() {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let jitter = lateness("jitter=20us");
    assert!(jitter.iter().all(|late| (0.0..20.1).contains(late)));
    let variance = mean(&jitter.iter().map(|late| (late - 10.0).powi(2)).collect::<Vec<_>>());
    // Evenly spread: a twelfth of the square. The sum of two would have half of that.
    assert!((mean(&jitter) - 10.0).abs() < 0.6 && (variance - 400.0 / 12.0).abs() < 3.0, "{variance}");
    let stalls = lateness("stall=0.25:500us");
    let share = stalls.iter().filter(|late| **late > 499.0).count() as f64 / 2000.0;
    assert!((share - 0.25).abs() < 0.03, "{share}");
    assert!(stalls.iter().all(|late| *late < 501.0), "none stalls twice");
    assert!(lateness("stall=1:500us").iter().all(|late| (late - 500.0).abs() < 1.0));
}

#[test]
fn threads_of_a_rank_wait_for_each_other_without_time_passing() {
    let outcome = Simulation::new(cluster(2, 1)).run(|_| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = runtime::spawn("hexagram-test", move || {
            runtime::sleep(Duration::from_millis(3));
            sender.send(7).unwrap();
            runtime::sleep(Duration::from_millis(4));
        });
        assert_eq!(runtime::receive(&receiver), Ok(7));
        let came = runtime::now();
        thread.unwrap().join().unwrap();
        came.elapsed()
    });
    let outcome = outcome.unwrap();
    assert_eq!(outcome.results, [Duration::from_millis(4); 2]);
    assert_eq!(outcome.elapsed, Duration::from_millis(7));
}

#[test]
fn arithmetic_takes_the_time_of_its_rates_and_two_threads_compute_at_once() {
    let rates: Rates = "scale 1e9\nreduce 1e9\n".parse().unwrap();
    let simulation = Simulation { rates, ..Simulation::new(cluster(1, 1)) };
    let outcome = simulation.run(|_| {
        let work = || {
            let mut buffer = Buffer::zeroed(DType::F32, 250_000).unwrap();
            buffer.write_all().unwrap().scale(2.0).unwrap();
            let _ = &mut buffer;
        };
        let start = runtime::now();
        let other = runtime::spawn("hexagram-test", work).unwrap();
        work();
        work();
        let mine = start.elapsed();
        other.join().unwrap();
        (mine, start.elapsed())
    });
    let millis = Duration::from_millis;
    assert_eq!(outcome.unwrap().results, [(millis(2), millis(2))]);
}

/// Computes for this many milliseconds, at the rate of [`timed`].
fn compute(millis: usize) {
    let mut buffer = Buffer::zeroed(DType::F32, 250_000 * millis).unwrap();
    buffer.write_all().unwrap().scale(2.0).unwrap();
    let _ = &mut buffer;
}

/// Returns the result of the only rank of a cluster where scaling a gigabyte takes a second.
fn timed<R: Send>(rank: impl Fn(Rc<dyn Transport>) -> R + Sync) -> Outcome<R> {
    let rates: Rates = "scale 1e9\n".parse().unwrap();
    let simulation = Simulation { rates, ..Simulation::new(cluster(1, 1)) };
    simulation.run(|world| rank(world.open(0).unwrap())).unwrap()
}

#[test]
fn what_a_thread_has_computed_others_see_once_it_has_taken_its_time() {
    let joined = timed(|_| {
        let start = runtime::now();
        runtime::spawn("hexagram-test", || compute(3)).unwrap().join().unwrap();
        start.elapsed()
    });
    assert_eq!(joined.results, [Duration::from_millis(3)]);
    let received = timed(|_| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let work = move || {
            compute(3);
            runtime::catch_up();
            sender.send(()).unwrap();
            compute(4);
        };
        let start = runtime::now();
        let other = runtime::spawn("hexagram-test", work).unwrap();
        runtime::receive(&receiver).unwrap();
        let received = start.elapsed();
        other.join().unwrap();
        (received, start.elapsed())
    });
    assert_eq!(received.results, [(Duration::from_millis(3), Duration::from_millis(7))]);
    let parked = timed(|endpoint| {
        let bell = endpoint.bell();
        let start = runtime::now();
        let work = move || {
            compute(3);
            bell.ring();
        };
        let other = runtime::spawn("hexagram-test", work).unwrap();
        runtime::current().unwrap().park(&&*endpoint, Duration::from_millis(50));
        let parked = start.elapsed();
        other.join().unwrap();
        parked
    });
    assert_eq!(parked.results, [Duration::from_millis(3)]);
}

#[test]
fn a_run_lasts_until_what_was_computed_last_is_over() {
    assert_eq!(timed(|_| compute(5)).elapsed, Duration::from_millis(5));
}

#[test]
fn what_never_comes_and_a_panic_are_errors() {
    let simulation = Simulation::new(cluster(2, 1));
    let stuck = simulation.run(|world| {
        if world.rank() == 1 {
            let (_kept, receiver) = std::sync::mpsc::channel::<()>();
            let _ = runtime::receive(&receiver);
        }
    });
    let error = stuck.unwrap_err().to_string();
    assert!(error.contains("[1]") && error.contains("never come"), "{error}");
    let panicked = simulation.run(|world| assert_eq!(world.rank(), 0, "on purpose"));
    assert!(panicked.unwrap_err().to_string().contains("on purpose"));
}

#[test]
fn a_bell_that_rings_before_a_park_ends_it() {
    let outcome = Simulation::new(cluster(1, 1)).run(|world| {
        let endpoint = world.open(0).unwrap();
        let park = || {
            let start = runtime::now();
            runtime::current().unwrap().park(&&*endpoint, Duration::from_millis(50));
            start.elapsed()
        };
        endpoint.bell().ring();
        [park(), park()]
    });
    assert_eq!(outcome.unwrap().results[0], [Duration::ZERO, Duration::from_millis(50)]);
}

#[test]
fn ranks_that_leave_one_after_another_are_news_once() {
    let outcome = Simulation::new(cluster(50, 10)).run(|world| {
        let endpoint = world.open(0).unwrap();
        if world.rank() > 0 {
            runtime::sleep(Duration::from_micros(10 * world.rank() as u64));
            return [Duration::ZERO; 2];
        }
        [0, 1].map(|_| {
            let start = runtime::now();
            runtime::current().unwrap().park(&&*endpoint, Duration::from_millis(50));
            start.elapsed()
        })
    });
    assert_eq!(outcome.unwrap().results[0], [Duration::from_micros(1010), Duration::from_millis(50)]);
}
