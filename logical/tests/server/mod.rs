//! The staleness clock and the sharded server: which ranks wait for which, the content of a pull, and the traffic.

mod encoded;
mod failures;

use crate::matrix;
use hexagram_logical::asynchronous::{
    Add, Clock, INLINE_BYTES, Pulled, Push, REPLY_BYTES, REQUEST_BYTES, Server, ServerOptions, Service,
    SgdUpdate,
};
use hexagram_logical::codec::{Codec, CodecError, Half, Noise, Properties};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{self, cases, on_threads, skipped_under_mpi, spawn};
use hexagram_logical::{Buffer, Communicator, Error, HEADER_BYTES, Result, TransportKind};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const RANKS: [usize; 4] = [2, 3, 4, 8];

/// A clock, and a server that begins at zero.
fn begin(
    comm: &Communicator,
    staleness: u64,
    len: usize,
    update: impl hexagram_logical::asynchronous::Update + 'static,
    options: ServerOptions,
) -> Result<(Clock, Server)> {
    let service = comm.block_on(Service::start(comm))?;
    let clock = comm.block_on(Clock::start(comm, &service, staleness))?;
    let zeros = testing::buffer(&vec![0f32; len]);
    let server = comm.block_on(Server::start(comm, &service, &clock, &zeros, update, options))?;
    Ok((clock, server))
}

fn read(buffer: &Buffer) -> Vec<f32> {
    buffer.host::<f32>().unwrap().to_vec()
}

fn vector(elements: &[f32]) -> Buffer {
    testing::buffer(elements)
}

/// The computation's next random number, for the speeds of ranks.
fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Gives others a chance to overtake, as a computation of uneven length does.
fn dawdle(seed: &mut u64) {
    for _ in 0..random(seed) % 64 {
        std::thread::yield_now();
    }
}

/// An update that depends on the order of deltas in every bit.
fn blend(parameters: &mut [f32], delta: &[f32], push: &Push) {
    let weight = 1.0 + (push.from * 3) as f32 / 7.0 + push.clock as f32 / 11.0;
    for (at, (x, d)) in parameters.iter_mut().zip(delta).enumerate() {
        *x = *x * 0.9 + (weight + (push.range.start + at) as f32 / 13.0) * d;
    }
}

/// The push of rank `rank` at a clock, given the parameters that it has pulled.
fn gradient(rank: usize, clock: u64, at: usize, x: f32) -> f32 {
    x / 3.0 + ((rank * 7 + at * 5) as u64 + clock * 11) as f32 % 17.0 / 5.0
}

/// A clock of bulk synchronous parallelism: all ranks' gradients at the same parameters, applied in the order of
/// ranks.
fn step(x: &mut [f32], ranks: usize, clock: u64) {
    let seen = x.to_vec();
    for rank in 0..ranks {
        let gradients: Vec<f32> = (0..x.len()).map(|at| gradient(rank, clock, at, seen[at])).collect();
        blend(x, &gradients, &Push { from: rank, clock, range: 0..seen.len() });
    }
}

/// Short vectors have fewer shards than there are ranks: here 16.
#[test]
fn ranks_without_a_shard_push_and_pull_like_the_others() {
    if skipped_under_mpi("it needs more ranks") {
        return;
    }
    const LEN: usize = 1003;
    const RANKS: usize = 19;
    let run = |comm: Communicator| {
        let (clock, mut server) = begin(&comm, 0, LEN, blend, ServerOptions::default())?;
        let mut x = vector(&[0.0; LEN]);
        let mut want = vec![0.0; LEN];
        for now in 0..4 {
            let pulled = match now % 2 {
                0 => server.blocking().pull(0..LEN, &mut x)?,
                _ => server.blocking().pull_cached(0..LEN, &mut x)?,
            };
            assert_eq!(pulled.versions.len(), 16);
            let seen = read(&x);
            assert!(seen == want, "at clock {now}");
            step(&mut want, RANKS, now);
            let g: Vec<f32> = (0..LEN).map(|at| gradient(comm.rank(), now, at, seen[at])).collect();
            server.blocking().push(0..LEN, &vector(&g))?;
            clock.tick();
        }
        clock.blocking().settle()?;
        let (range, mine) = server.blocking().shard()?;
        assert!(mine == want[range.clone()]);
        Ok(range)
    };
    let ranges = spawn(TransportKind::Thread, RANKS, run).unwrap();
    assert_eq!(ranges.iter().filter(|range| !range.is_empty()).count(), 16);
    assert_eq!(ranges.iter().map(Range::len).sum::<usize>(), LEN);
}

#[test]
fn without_staleness_any_order_of_events_is_bulk_synchronous_to_the_last_bit() {
    const LEN: usize = 1003;
    matrix(&RANKS, |comm| {
        let (clock, mut server) = begin(comm, 0, LEN, blend, ServerOptions::default())?;
        let rank = comm.rank();
        let mut seed = 0x9e37_79b9 + comm.rank() as u64;
        let mut x = vector(&[0.0; LEN]);
        let mut want = vec![0.0; LEN];
        for now in 0..12 {
            dawdle(&mut seed);
            let pulled = server.blocking().pull(0..LEN, &mut x)?;
            assert_eq!(pulled.clock, now);
            assert_eq!(pulled.versions.len(), comm.size());
            let seen = read(&x);
            assert!(seen == want, "at clock {now}");
            step(&mut want, comm.size(), now);
            let g: Vec<f32> = (0..LEN).map(|at| gradient(rank, now, at, seen[at])).collect();
            dawdle(&mut seed);
            // In two pieces, which do not end where shards do.
            server.blocking().push(0..LEN / 3, &vector(&g[..LEN / 3]))?;
            dawdle(&mut seed);
            server.blocking().push(LEN / 3..LEN, &vector(&g[LEN / 3..]))?;
            clock.tick();
        }
        clock.blocking().settle()?;
        let (range, mine) = server.blocking().shard()?;
        assert!(mine == want[range]);
        Ok(())
    });
}

#[test]
fn a_fast_rank_goes_exactly_as_far_ahead_as_it_may() {
    for (transport, ranks) in cases(&RANKS) {
        for staleness in [0, 1, 4] {
            // The upper bound of rank 0's clock; other ranks see it only if they share memory.
            let slow = AtomicU64::new(0);
            let shared = transport.to_string() != "mpi";
            spawn(transport, ranks, |comm| {
                let service = comm.block_on(Service::start(&comm))?;
                let clock = comm.block_on(Clock::start(&comm, &service, staleness))?;
                let steps = staleness + 6;
                if comm.rank() == 0 {
                    // Every rank proceeds as far as it may while this rank stops; otherwise they would wait for ever.
                    for peer in 1..ranks {
                        comm.blocking().recv(&mut [0i64], peer)?;
                    }
                    for _ in 0..steps {
                        slow.fetch_add(1, Ordering::SeqCst);
                        clock.tick();
                        clock.blocking().wait()?;
                    }
                    return Ok(());
                }
                for _ in 0..staleness {
                    clock.tick();
                    assert_eq!(clock.blocking().wait()?, 0);
                }
                assert_eq!(clock.now(), staleness);
                comm.blocking().send(&[0i64], 0)?;
                for _ in staleness..steps {
                    let now = clock.tick();
                    let slowest = clock.blocking().wait()?;
                    assert!(now <= slowest + staleness, "at {now} while another is at {slowest}");
                    // It passed only after the slow rank continued.
                    assert!(!shared || now <= slow.load(Ordering::SeqCst) + staleness);
                }
                Ok(())
            })
            .unwrap_or_else(|e| panic!("{transport} × {ranks}, staleness {staleness}: {e}"));
        }
    }
}

#[test]
fn without_bound_nobody_waits_and_settling_waits_for_all() {
    matrix(&RANKS, |comm| {
        let service = comm.block_on(Service::start(comm))?;
        let clock = comm.block_on(Clock::start(comm, &service, Clock::UNBOUNDED))?;
        if comm.rank() == 0 {
            for _ in 0..1000 {
                clock.tick();
                clock.blocking().wait()?;
            }
            comm.blocking().barrier()?;
        } else {
            // Rank 0 has done all its work by now.
            comm.blocking().barrier()?;
            (0..1000).for_each(|_| _ = clock.tick());
        }
        assert_eq!(clock.blocking().settle()?, 1000);
        Ok(())
    });
}

#[test]
fn a_rank_that_has_finished_holds_nobody_back() {
    matrix(&RANKS, |comm| {
        let service = comm.block_on(Service::start(comm))?;
        let clock = comm.block_on(Clock::start(comm, &service, 0))?;
        for _ in 0..comm.rank() {
            clock.tick();
            clock.blocking().wait()?;
        }
        drop(clock);
        service.blocking().close()
    });
}

#[test]
fn a_stale_read_contains_all_that_it_must_and_its_own_ranks_pushes() {
    matrix(&RANKS, |comm| {
        const LEN: usize = 50;
        for staleness in [1, 3] {
            let (clock, mut server) = begin(comm, staleness, LEN, Add, ServerOptions::default())?;
            let n = comm.size();
            let mut seed = 77 + comm.rank() as u64;
            let mut x = vector(&[0.0; LEN]);
            for now in 0..20u64 {
                dawdle(&mut seed);
                let pulled = server.blocking().pull(0..LEN, &mut x)?;
                let must = now.saturating_sub(staleness);
                assert!(must <= pulled.clock && pulled.clock <= now, "{pulled:?} at {now}");
                // Each rank adds 1 per clock. A pull contains at least the other ranks' before `must`, and all its
                // own; at most those of the fastest rank.
                let least = (must * (n as u64 - 1) + now) as f32;
                let most = ((now + staleness + 1) * (n as u64 - 1) + now) as f32;
                for x in read(&x) {
                    assert!(least <= x && x <= most, "{x} at clock {now}: not in {least}..={most}");
                }
                server.blocking().push(0..LEN, &vector(&[1.0; LEN]))?;
                clock.tick();
            }
            clock.blocking().settle()?;
            server.blocking().pull(0..LEN, &mut x)?;
            assert_eq!(read(&x), [20.0 * n as f32; LEN]);
        }
        Ok(())
    });
}

#[test]
fn a_cached_read_costs_nothing_until_it_is_too_old() {
    const LEN: usize = 840;
    matrix(&RANKS, |comm| {
        let (clock, mut server) = begin(comm, 2, LEN, Add, ServerOptions::default())?;
        let sent = || comm.world().traffic().messages_sent();
        let mut x = vector(&[0.0; LEN]);
        server.blocking().push(0..LEN, &vector(&[1.0; LEN]))?;
        clock.blocking().settle()?;
        let first = server.blocking().pull_cached(0..LEN, &mut x)?;
        assert_eq!(first.clock, 0);
        // The others have nothing to send either, and all earlier pushes are answered.
        comm.blocking().barrier()?;
        let before = sent();
        for _ in 0..2 {
            clock.tick();
            let old = read(&x);
            assert_eq!(server.blocking().pull_cached(0..LEN, &mut x)?, first);
            assert_eq!(read(&x), old);
        }
        assert_eq!(sent(), before);
        comm.blocking().barrier()?;
        // At clock 3 it must contain all pushes of clock 0.
        clock.tick();
        let fresh = server.blocking().pull_cached(LEN / 2..LEN, &mut vector(&[0.0; LEN / 2]))?;
        assert!(fresh.clock >= 1, "{fresh:?}");
        server.blocking().pull_cached(0..LEN, &mut x)?;
        assert_eq!(read(&x), [comm.size() as f32; LEN]);
        Ok(())
    });
}

#[test]
fn ranges_go_where_they_belong_whatever_their_size() {
    const LEN: usize = 37;
    matrix(&RANKS, |comm| {
        let (clock, mut server) = begin(comm, 0, LEN, SgdUpdate { rate: 0.5 }, ServerOptions::default())?;
        for (start, end) in [(0, 0), (0, 1), (5, 6), (3, 30), (36, 37), (0, 37)] {
            if comm.rank() == 0 {
                let delta: Vec<f32> = (start..end).map(|at| -2.0 * at as f32).collect();
                server.blocking().push(start..end, &vector(&delta))?;
            }
            clock.tick();
            clock.blocking().settle()?;
        }
        let times = |at: usize| {
            [(0, 1), (5, 6), (3, 30), (36, 37), (0, 37)].iter().filter(|r| r.0 <= at && at < r.1).count()
        };
        let want: Vec<f32> = (0..LEN).map(|at| (at * times(at)) as f32).collect();
        for (start, end) in [(0, 0), (36, 37), (2, 29), (0, 37)] {
            let mut x = vector(&vec![0.0; end - start]);
            server.blocking().pull(start..end, &mut x)?;
            assert_eq!(read(&x), want[start..end]);
            server.blocking().pull_cached(start..end, &mut x)?;
            assert_eq!(read(&x), want[start..end]);
        }
        Ok(())
    });
}

#[test]
fn several_servers_share_a_clock_and_more_ranks_than_elements_do_no_harm() {
    matrix(&RANKS, |comm| {
        let service = comm.block_on(Service::start(comm))?;
        let clock = comm.block_on(Clock::start(comm, &service, 0))?;
        let lens = [0, 1, 3, 400];
        let mut servers: Vec<Server> = lens
            .iter()
            .map(|len| {
                let zeros = vector(&vec![0.0; *len]);
                comm.block_on(Server::start(comm, &service, &clock, &zeros, Add, ServerOptions::default()))
            })
            .collect::<Result<_>>()?;
        for now in 0..5 {
            for (server, len) in servers.iter_mut().zip(lens) {
                let mut x = vector(&vec![0.0; len]);
                server.blocking().pull(0..len, &mut x)?;
                assert_eq!(read(&x), vec![(now * comm.size()) as f32; len]);
                server.blocking().push(0..len, &vector(&vec![1.0; len]))?;
            }
            clock.tick();
        }
        Ok(())
    });
}
