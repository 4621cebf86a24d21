//! Neighbour averaging and push-sum against their definitions: transports × ranks × topologies × element types, with
//! the documented bytes, and the errors if ranks disagree about the graph.

use crate::matrix;
use half::{bf16, f16};
use hexagram_logical::decentralized::{Edge, Mixing, Schedule, Topology};
use hexagram_logical::testing::{cases, on_threads, spawn};
use hexagram_logical::{Communicator, Element, Error, HEADER_BYTES, Result};
use std::collections::BTreeSet;
use std::time::Duration;

const RANKS: [usize; 4] = [2, 3, 4, 8];
/// Bytes of a segment.
const SEGMENT: usize = 512 << 10;

const TOPOLOGIES: [Topology; 12] = [
    Topology::Ring,
    Topology::Torus(None),
    Topology::Exponential,
    Topology::OnePeerExponential,
    Topology::XorPairs,
    Topology::Hypercube,
    Topology::Base { peers: 2 },
    Topology::EquiStatic { seed: 3, hops: None },
    Topology::Star,
    Topology::Complete,
    Topology::RandomPairs { seed: 3, pairs: None },
    Topology::ShiftOne,
];

/// The topologies for this number of ranks.
fn topologies(ranks: usize) -> impl Iterator<Item = Topology> {
    TOPOLOGIES.into_iter().filter(move |topology| topology.mixing(ranks, 0).is_ok())
}

/// Numbers with many digits, distinct by rank and position.
fn value(rank: usize, at: usize) -> f64 {
    ((rank * 7919 + at * 104_729) % 10_007) as f64 / 331.0 - 15.0
}

trait Number: Element {
    fn of(value: f64) -> Self;
    /// The sum of weighted numbers as documented: in f32 or f64, rounded once.
    fn sum(terms: &[(f64, Self)]) -> Self;
}

macro_rules! numbers {
    ($($t:ty, $wide:ty: $from:expr, $widen:expr);*) => {$(impl Number for $t {
        fn of(value: f64) -> Self { $from(value as $wide) }
        fn sum(terms: &[(f64, Self)]) -> Self {
            let weighted = terms.iter().map(|(weight, x)| *weight as $wide * $widen(*x));
            $from(weighted.reduce(|sum, term| sum + term).unwrap())
        }
    })*};
}
numbers!(f32, f64: |v| v as f32, f64::from; f64, f64: |v| v, |v| v; f16, f32: f16::from_f32, f32::from;
    bf16, f32: bf16::from_f32, f32::from);

fn numbers<T: Number>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|at| T::of(value(rank, at))).collect()
}

fn mixes<T: Number>(comm: &Communicator, len: usize) -> Result<()> {
    for topology in topologies(comm.size()) {
        for step in 0..3 {
            let mut mine = numbers::<T>(comm.rank(), len);
            comm.blocking().gossip(&mut mine, &topology, step)?;
            let row = topology.mixing(comm.size(), step)?.row(comm.rank());
            let others: Vec<Vec<T>> = row.iter().map(|(from, _)| numbers(*from, len)).collect();
            for (at, got) in mine.iter().enumerate() {
                let terms: Vec<(f64, T)> =
                    row.iter().zip(&others).map(|((_, weight), numbers)| (*weight, numbers[at])).collect();
                let want = T::sum(&terms);
                assert!(*got == want, "{topology:?}, step {step}, element {at}: {got:?} is not {want:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn everyone_gets_its_row_of_the_matrix_rounded_once() {
    matrix(&RANKS, |comm| {
        for len in [0, 1, 7, 257] {
            mixes::<f32>(comm, len)?;
            mixes::<f64>(comm, len)?;
            mixes::<f16>(comm, len)?;
            mixes::<bf16>(comm, len)?;
        }
        Ok(())
    });
}

#[test]
fn buffers_of_many_segments_come_through() {
    matrix(&RANKS, |comm| {
        // More segments than are in flight at a time, the last of them odd.
        let len = 6 * SEGMENT / 4 + 3;
        for topology in [Topology::OnePeerExponential, Topology::Ring] {
            let mut mine = numbers::<f32>(comm.rank(), len);
            comm.blocking().gossip(&mut mine, &topology, 1)?;
            let row = topology.mixing(comm.size(), 1)?.row(comm.rank());
            for at in (0..len).step_by(61).chain([len - 1]) {
                let of = |(from, weight): &(usize, f64)| (*weight, value(*from, at) as f32);
                let got = mine[at];
                let want = f32::sum(&row.iter().map(of).collect::<Vec<_>>());
                assert!(got == want, "{topology:?}, element {at}: {got} is not {want}");
            }
        }
        Ok(())
    });
}

#[test]
fn partners_of_a_pair_and_members_of_a_complete_graph_get_equal_bits() {
    matrix(&RANKS, |comm| {
        let rank = comm.rank();
        let size = comm.size();
        let mut schedules: Vec<Topology> = vec![Topology::XorPairs, Topology::Complete];
        schedules.push(Topology::RandomPairs { seed: 5, pairs: None });
        for topology in schedules {
            for step in 0..3 {
                let mut mine = numbers::<f64>(rank, 513);
                comm.blocking().gossip(&mut mine, &topology, step)?;
                let mut all = vec![0f64; 513 * size];
                comm.blocking().all_gather(&mine, &mut all)?;
                let mixing = topology.mixing(size, step)?;
                for (other, _) in mixing.sources(rank) {
                    assert!(all[other * 513..][..513] == mine, "{topology:?}: ranks {rank} and {other}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_matrix_of_ones_own_and_one_that_changes_by_step() {
    matrix(&RANKS, |comm| {
        let rank = comm.rank();
        let size = comm.size();
        // Every rank copies rank 0; then a ring in one direction.
        let from_first: Vec<f64> =
            (0..size * size).map(|at| if at % size == 0 { 1.0 } else { 0.0 }).collect();
        let shift = Mixing::pull(size, |rank| BTreeSet::from([(rank + 1) % size]))?;
        let schedule = vec![Mixing::of_matrix(size, &from_first)?, shift];
        let mut mine = [rank as f64, 1.0];
        comm.blocking().gossip(&mut mine, &schedule, 1)?;
        assert_eq!(mine, [(rank + (rank + 1) % size) as f64 / 2.0, 1.0]);
        comm.blocking().gossip(&mut mine, &schedule, 2)?;
        assert_eq!(mine, [0.5, 1.0]);
        Ok(())
    });
}

#[test]
fn d_psgd_stops_where_theory_says() {
    // fᵢ = aᵢ (x − bᵢ)² / 2 on a ring of 4: the fixed point of x ← W x − γ A (x − b).
    const GAMMA: f64 = 0.1;
    let a = [1.0, 3.0, 0.5, 2.0];
    let b = [0.0, 1.0, -2.0, 4.0];
    for (transport, ranks) in cases(&[4]) {
        spawn(transport, ranks, |comm| {
            let rank = comm.rank();
            let mut x = [0f64];
            for step in 0..400 {
                let gradient = a[rank] * (x[0] - b[rank]);
                comm.blocking().gossip(&mut x, &Topology::Ring, step)?;
                x[0] -= GAMMA * gradient;
            }
            let mut all = [0f64; 4];
            comm.blocking().all_gather(&x, &mut all)?;
            for i in 0..4 {
                // (I − W + γ A) x = γ A b
                let neighbours = all[(i + 1) % 4] + all[(i + 3) % 4];
                let residual = all[i] * (2.0 / 3.0 + GAMMA * a[i]) - neighbours / 3.0 - GAMMA * a[i] * b[i];
                assert!(residual.abs() < 1e-12, "{residual} on rank {i} of {all:?}");
            }
            assert!((all[0] - all[3]).abs() > 0.01, "with unequal losses, ranks stay apart: {all:?}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn groups_gossip_among_themselves() {
    matrix(&RANKS, |comm| {
        let rank = comm.rank();
        let parity = comm.rank() % 2;
        // Numbered backwards, so that its ranks differ from the world's.
        let group = comm.block_on(comm.split(Some(parity as u32), -(rank as i64)))?.unwrap();
        let members: Vec<usize> = (0..comm.size()).rev().filter(|rank| rank % 2 == parity).collect();
        let mut x = [rank as f64];
        group.blocking().gossip(&mut x, &Topology::OnePeerExponential, 0)?;
        let size = members.len();
        let peer = members[(group.rank() + size - usize::from(size > 1)) % size];
        assert_eq!(x, [(rank + peer) as f64 / 2.0]);
        let mut y = [rank as f64];
        let mut weight = 1.0;
        comm.blocking().push_sum(&mut y, &mut weight, &Topology::Complete, 0)?;
        assert!((y[0] - (comm.size() - 1) as f64 / 2.0).abs() < 1e-12, "{y:?}");
        Ok(())
    });
}

/// Bytes that this rank sends in `operation`.
fn bytes(comm: &Communicator, operation: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = comm.world().traffic().bytes_sent();
    operation()?;
    Ok(comm.world().traffic().bytes_sent() - before)
}

#[test]
fn bytes_are_those_of_the_formula() {
    matrix(&RANKS, |comm| {
        for len in [0, 1000, SEGMENT / 4, SEGMENT / 4 + 1, 5 * SEGMENT / 4] {
            let messages = (4 * len).div_ceil(SEGMENT).max(1);
            // The large ones over few.
            for topology in
                topologies(comm.size()).skip(if len > 1000 { 3 } else { 0 }).step_by(1 + len / 1001)
            {
                let mixing = topology.mixing(comm.size(), 2)?;
                let destinations = mixing.destinations(comm.rank()).len();
                let mut x = vec![1f32; len];
                let sent = bytes(comm, || comm.blocking().gossip(&mut x, &topology, 2))?;
                let each = 4 * len + messages * HEADER_BYTES;
                assert_eq!(sent, (destinations * each) as u64, "{topology:?} of {len}");
                let sent = bytes(comm, || comm.blocking().push_sum(&mut x, &mut 1.0, &topology, 2))?;
                assert_eq!(
                    sent,
                    (destinations * (each + 8 + HEADER_BYTES)) as u64,
                    "push-sum over {topology:?}"
                );
            }
        }
        Ok(())
    });
}

/// 0 → 1, 0 → 2, 1 → 2, 2 → 3, 3 → 0, and every rank to itself; each rank distributes its numbers evenly.
fn directed() -> Mixing {
    let to = [vec![1, 2], vec![2], vec![3], vec![0]];
    Mixing::push(4, |rank| to[rank].iter().copied().collect()).unwrap()
}

#[test]
fn push_sum_finds_the_mean_of_a_directed_graph() {
    for (transport, ranks) in cases(&[4]) {
        spawn(transport, ranks, |comm| {
            let rank = comm.rank();
            let graph = directed();
            assert!(graph.is_column_stochastic() && !graph.is_row_stochastic());
            let mut x = [rank as f64; 3];
            let mut weight = 1.0;
            for round in 1..=200 {
                comm.blocking().push_sum(&mut x, &mut weight, &graph, round)?;
                let mut furthest = [(x[0] / weight - 1.5).abs()];
                comm.blocking().all_reduce(&mut furthest, hexagram_logical::ReduceOp::Max)?;
                match round {
                    10 => assert!((furthest[0] - 0.00670).abs() < 5e-6, "{furthest:?}"),
                    20 => assert!((furthest[0] - 2.88e-5).abs() < 5e-8, "{furthest:?}"),
                    _ => {}
                }
            }
            assert!((x[1] / weight - 1.5).abs() < 1e-12, "{x:?} {weight}");
            assert!((weight - [12.0, 8.0, 16.0, 16.0][rank] / 13.0).abs() < 1e-12, "{weight}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn what_push_sum_is_not_ends_elsewhere() {
    for (transport, ranks) in cases(&[4]) {
        spawn(transport, ranks, |comm| {
            // Each receives evenly from its senders: row-stochastic, and no weights.
            let from = [vec![3], vec![0], vec![0, 1], vec![2]];
            let graph = Mixing::pull(4, |rank| from[rank].iter().copied().collect())?;
            let mut x = [comm.rank() as f64];
            for step in 0..300 {
                comm.blocking().gossip(&mut x, &graph, step)?;
            }
            assert!((x[0] - 1.538462).abs() < 1e-6, "{x:?}");
            // The weight set to 1 at every round, as if z were x.
            let mut z = [comm.rank() as f64];
            for step in 0..300 {
                let mut weight = 1.0;
                comm.blocking().push_sum(&mut z, &mut weight, &directed(), step)?;
                z[0] /= weight;
            }
            assert!((z[0] - 1.581281).abs() < 1e-6, "{z:?}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn the_mean_is_kept_for_many_rounds() {
    for (transport, ranks) in cases(&[3, 8]) {
        spawn(transport, ranks, |comm| {
            let mut x = [1000.0 + comm.rank() as f32, 0.1];
            for step in 0..300 {
                comm.blocking().gossip(&mut x, &Topology::RandomPairs { seed: 9, pairs: None }, step)?;
                comm.blocking().gossip(&mut x, &Topology::Ring, step)?;
            }
            let mean = 1000.0 + (comm.size() - 1) as f32 / 2.0;
            assert!((x[0] - mean).abs() < 0.005 && x[1] == 0.1, "{x:?}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn wrong_calls_are_refused_before_anything_is_sent() {
    matrix(&RANKS, |comm| {
        let blocking = comm.blocking();
        let refused = |outcome: Result<()>, about: &str| {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains(about), "{error}");
        };
        let before = comm.world().traffic().bytes_sent();
        let uneven = Mixing::push(comm.size(), |rank| (0..rank).collect())?;
        let unfinished = Mixing::of_edges(vec![0.9; comm.size()], &[])?;
        refused(blocking.gossip(&mut [1i32], &Topology::Ring, 0), "i32");
        refused(blocking.gossip(&mut [1f32], &unfinished, 3), "step 3");
        refused(blocking.gossip(&mut [1f32], &uneven, 0), "a row");
        refused(blocking.gossip(&mut [1f32], &Mixing::of_pairs(9, &[])?, 0), "9 ranks");
        refused(blocking.push_sum(&mut [1f32], &mut 1.0, &unfinished, 0), "a column");
        refused(blocking.push_sum(&mut [1f32], &mut 0.0, &uneven, 0), "not a valid weight");
        refused(blocking.push_sum(&mut [1f32], &mut f64::from(f32::NAN), &uneven, 0), "not a valid weight");
        refused(blocking.gossip(&mut [1f32], &Topology::Torus(Some(7)), 0), "torus");
        assert_eq!(comm.world().traffic().bytes_sent(), before);
        blocking.gossip(&mut [1f32], &Topology::Ring, 0)
    });
}

/// Runs `body` on 4 ranks of every transport and passes the errors to `check`; no rank fails while others still open.
fn all_fail(body: impl Fn(&Communicator) -> Result<()> + Sync, check: impl Fn(usize, Error)) {
    for transport in on_threads() {
        let open = std::sync::Barrier::new(4);
        let errors = spawn(transport, 4, |comm| {
            open.wait();
            Ok(body(&comm).err())
        });
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            check(rank, error.unwrap_or_else(|| panic!("rank {rank} over {transport} saw no error")));
        }
    }
}

#[test]
fn ranks_that_mean_different_graphs_or_weights_are_told_so() {
    let near = |rank: usize| BTreeSet::from([(rank + 1) % 4, (rank + 3) % 4]);
    let edges = (0..4).flat_map(|to| near(to).into_iter().map(move |from| (from, to)));
    let edge = |(from, to)| Edge { from, to, source: 0.25, destination: 1.0 };
    let otherwise = Mixing::of_edges(vec![0.5; 4], &edges.map(edge).collect::<Vec<_>>()).unwrap();
    for other in [Topology::Complete.mixing(4, 0).unwrap(), otherwise] {
        all_fail(
            |comm| {
                let ring = Topology::Ring.mixing(4, 0)?;
                comm.blocking().gossip(&mut [1f32; 9], if comm.rank() == 2 { &other } else { &ring }, 0)?;
                comm.blocking().barrier()
            },
            |rank, error| {
                let text = error.to_string();
                assert!(
                    text.contains("disagree") && text.contains("gossip(9 × f32, graph #"),
                    "rank {rank}: {text}"
                );
            },
        );
    }
}

/// Their messages would match, except for the additional weight.
#[test]
fn gossip_and_push_sum_are_a_mismatch() {
    all_fail(
        |comm| {
            match comm.rank() {
                2 => comm.blocking().push_sum(&mut [1f32; 9], &mut 1.0, &Topology::Ring, 0)?,
                _ => comm.blocking().gossip(&mut [1f32; 9], &Topology::Ring, 0)?,
            }
            comm.blocking().barrier()
        },
        |rank, error| {
            let text = error.to_string();
            assert!(
                text.contains("gossip(9 × f32, graph #") && text.contains("push_sum(9 × f32, graph #"),
                "rank {rank}: {text}"
            );
        },
    );
}

#[test]
fn ranks_at_different_steps_of_a_schedule_are_told_so() {
    all_fail(
        |comm| {
            // Pairs 0-1 and 2-3; rank 3 is a step ahead, and would mix with 1.
            let step = if comm.rank() == 3 { 1 } else { 0 };
            comm.blocking().gossip(&mut [1f32; 9], &Topology::XorPairs, step)?;
            comm.blocking().gossip(&mut [1f32; 9], &Topology::Complete, step)
        },
        |rank, error| {
            let text = error.to_string();
            assert!(
                text.contains("disagree") && text.contains("gossip(9 × f32, graph #"),
                "rank {rank}: {text}"
            );
        },
    );
}

#[test]
fn ranks_whose_messages_never_meet_are_named_after_the_deadline() {
    all_fail(
        |comm| {
            comm.set_deadline(Duration::from_secs(3));
            // Rank 0 receives from 3, and sends to it; no other rank does. Rank 1 waits for 0 in vain.
            let pairs: &[(usize, usize)] = if comm.rank() == 0 { &[(0, 3)] } else { &[(0, 1)] };
            let mixing = Mixing::of_pairs(4, pairs)?;
            comm.blocking().gossip(&mut [1f32; 9], &mixing, 0)?;
            // Ranks 2 and 3 have nothing to wait for until here.
            comm.blocking().gossip(&mut [1f32; 9], &Mixing::of_pairs(4, &[(2, 3), (0, 1)])?, 1)?;
            comm.blocking().barrier()
        },
        |rank, error| {
            let text = error.to_string();
            assert!(text.contains("gossip"), "rank {rank}: {text}");
            let names = ["rank 0", "rank 1", "rank 3"].iter().any(|name| text.contains(name));
            assert!(names, "rank {rank}: {text}");
        },
    );
}

#[test]
fn different_lengths_are_a_mismatch() {
    all_fail(
        |comm| {
            let mut x = vec![1f32; if comm.rank() == 1 { 10 } else { 9 }];
            comm.blocking().gossip(&mut x, &Topology::Ring, 0)?;
            comm.blocking().barrier()
        },
        |rank, error| {
            let text = error.to_string();
            assert!(
                text.contains("gossip(9 × f32") && text.contains("gossip(10 × f32"),
                "rank {rank}: {text}"
            );
        },
    );
}
