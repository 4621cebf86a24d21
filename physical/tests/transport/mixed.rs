//! Ranks of several hosts: which bytes take which path, and what ends a rank's sleep.

use super::{End, label, numbers};
use hexagram_physical::dtype::DType;
use hexagram_physical::testing::{skipped_under_mpi, spawn_hosts};
use hexagram_physical::transport::{ReceiveMode, Source};
use hexagram_physical::{Buffer, TransportKind, drive};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_mixed_world_counts_bytes_by_path() {
    if skipped_under_mpi("it is about the mixed transport") {
        return;
    }
    const HEADER: u64 = 48;
    const LEN: usize = 1000;
    // By rank: how many peers are on its host.
    for (hosts, near) in [
        (&[0, 0, 1, 1][..], &[1, 1, 1, 1][..]),
        (&[0, 1, 0, 0, 2], &[2, 0, 2, 2, 0]),
        (&[0, 1, 2], &[0, 0, 0]),
        (&[4, 4, 4], &[2, 2, 2]),
    ] {
        spawn_hosts(hosts, |world| {
            let end = End::new(world);
            let rank = end.rank();
            let size = end.transport.size();
            let label = label(0, 0, LEN);
            let out = Buffer::from_slice(&numbers(rank, 0, LEN)).unwrap();
            let peers = || (0..size).filter(|peer| *peer != rank);
            let sends: Vec<_> = peers().map(|peer| end.send(peer, label, &out)).collect();
            for peer in peers() {
                let into = Buffer::zeroed(DType::F32, LEN).unwrap();
                end.wait(end.recv(Source::Rank(peer), label, &into, ReceiveMode::Copy)).unwrap();
                assert_eq!(*into.host::<f32>().unwrap(), numbers(peer, 0, LEN));
            }
            end.wait(async {
                for send in sends {
                    send.await.unwrap();
                }
            });
            let message = HEADER + 4 * LEN as u64;
            let far = (size - 1 - near[rank]) as u64;
            assert_eq!(end.world.traffic().bytes_sent_by(TransportKind::Shm), near[rank] as u64 * message);
            assert_eq!(end.world.traffic().bytes_sent_by(TransportKind::Tcp), far * message);
        });
    }
}

/// Far longer than anything takes, so that a wake-up that is missed fails the test.
const LONGER: Duration = Duration::from_secs(30);

/// Sleeps until `done` returns true; sleeps once if the event itself also ends the sleep.
fn sleep(end: &End, what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        if !end.transport.progress() {
            end.transport.park(LONGER);
        }
        assert!(started.elapsed() < LONGER, "{what} did not end the sleep");
    }
}

/// Gives the sleeper its word, some time after it was asked for.
fn wake_up(end: &End, round: u64) {
    let buffer = Buffer::zeroed(DType::F32, 1).unwrap();
    end.wait(end.recv(Source::Rank(0), label(round, 0, 1), &buffer, ReceiveMode::Copy)).unwrap();
    // The rank most likely sleeps by then, and must wake in either case.
    thread::sleep(Duration::from_millis(2 * end.rank() as u64));
    end.wait(end.send(0, label(round, end.rank(), 1), &buffer)).unwrap();
}

/// Asks both others, and sleeps until each of them has answered.
fn sleep_until_both_have_answered(end: &End, round: u64) {
    let buffer = Buffer::zeroed(DType::F32, 1).unwrap();
    let await_one = |from: usize, into: &Buffer| {
        let view = into.write(0..1).unwrap();
        end.transport.post_recv(Source::Rank(from), label(round, from, 1), view, ReceiveMode::Copy)
    };
    let into = [(); 2].map(|()| Buffer::zeroed(DType::F32, 1).unwrap());
    let tickets = [await_one(1, &into[0]), await_one(2, &into[1])];
    for peer in [1, 2] {
        end.wait(end.send(peer, label(round, 0, 1), &buffer)).unwrap();
    }
    for (what, ticket) in ["memory", "a socket"].into_iter().zip(tickets) {
        let is_there = || end.transport.poll(ticket, &mut Context::from_waker(&drive::waker())).is_ready();
        sleep(end, what, is_there);
    }
}

fn sleep_until_the_bell_rings(end: &End) {
    let bell = end.transport.bell();
    let rung = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(2));
            rung.store(true, Ordering::SeqCst);
            bell.ring();
        });
        sleep(end, "the bell", || rung.load(Ordering::SeqCst));
    });
}

#[test]
fn one_sleep_is_ended_by_memory_by_sockets_and_by_the_bell() {
    if skipped_under_mpi("it is about the mixed transport") {
        return;
    }
    spawn_hosts(&[0, 0, 1], |world| {
        let end = End::new(world);
        for round in 0..20 {
            if end.rank() != 0 {
                wake_up(&end, round);
                continue;
            }
            sleep_until_both_have_answered(&end, round);
            sleep_until_the_bell_rings(&end);
        }
    });
}
