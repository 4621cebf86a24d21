//! Messages and memory: their bits, their bytes, and their use after a restore.

use super::consensus::distance;
use super::lossy::Lossy;
use super::{DCD, RANKS, choco, encoding, matrix, numbers, remembered};
use hexagram_logical::codec::{Codec, Half, MinMax8, Sign};
use hexagram_logical::decentralized::{Edge, GossipOptions, Mixing, Schedule, Topology};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{self, cases, spawn};
use hexagram_logical::{Buffer, HEADER_BYTES};
use std::sync::Arc;

#[test]
fn the_sum_over_neighbours_stays_near_what_they_have() {
    for (transport, ranks) in cases(&[4]) {
        spawn(transport, ranks, |comm| {
            let rank = comm.rank();
            let size = comm.size();
            let mut x = numbers(rank, 50);
            let mut encoding = encoding(MinMax8::default(), Feedback::Difference);
            for round in 0..300 {
                x.iter_mut().zip(numbers(rank + 4 * round, 50)).for_each(|(x, update)| *x += 0.1 * update);
                comm.blocking().gossip_encoded(&mut x, &Topology::Ring, 0, &mut encoding, choco(0.5))?;
            }
            let mut copies = vec![0f32; 50 * size];
            comm.blocking().all_gather(&remembered(&encoding, "own"), &mut copies)?;
            let row = Topology::Ring.mixing(size, 0)?.row(rank);
            let largest = copies.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (at, sum) in remembered(&encoding, "neighbours").iter().enumerate() {
                let want: f64 =
                    row.iter().map(|(from, weight)| weight * f64::from(copies[from * 50 + at])).sum();
                let off = (f64::from(*sum) - want).abs() / f64::from(largest);
                assert!(off < 2e-6, "{off}");
            }
            Ok(())
        })
        .unwrap();
    }
}

fn codecs() -> [Arc<dyn Codec>; 4] {
    [Arc::new(Half::BF16), Arc::new(MinMax8::default()), Arc::new(Sign::default()), Arc::new(Lossy::TopTenth)]
}

/// All rules.
fn rules() -> [(Feedback, GossipOptions); 5] {
    [
        (Feedback::None, choco(0.5)),
        (Feedback::Error, choco(0.1)),
        (Feedback::Difference, choco(0.2)),
        (Feedback::Difference, DCD),
        (Feedback::Extrapolation, choco(1.0)),
    ]
}

#[test]
fn what_error_feedback_has_not_said_it_remembers() {
    // Two ranks that swap: x ← x + γ (q of the other − q), and e is the part of all x that was in no q.
    for (transport, ranks) in cases(&[2]) {
        spawn(transport, ranks, |comm| {
            let len = 40;
            let gamma = 0.25;
            let swap = Mixing::of_matrix(2, &[0.0, 1.0, 1.0, 0.0])?;
            let mut x = numbers(comm.rank(), len);
            let mut encoding = encoding(Lossy::TopTenth, Feedback::Error);
            let mut meant = vec![0f64; len];
            let mut said = vec![0f64; len];
            for _ in 0..30 {
                let before = x.clone();
                comm.blocking().gossip_encoded(&mut x, &swap, 0, &mut encoding, choco(gamma))?;
                for at in 0..len {
                    meant[at] += f64::from(before[at]);
                    said[at] += f64::from(x[at] - before[at]) / gamma;
                }
            }
            let own = |at: usize| meant[at] - f64::from(remembered(&encoding, "error")[at]);
            let mine: Vec<f64> = (0..len).map(own).collect();
            let mut all = vec![0f64; 2 * len];
            comm.blocking().all_gather(&mine, &mut all)?;
            for at in 0..len {
                let other = all[(1 - comm.rank()) * len + at];
                let off = (other - mine[at] - said[at]).abs();
                assert!(off < 1e-4, "{off} at {at}");
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn what_a_rank_knows_of_a_neighbour_has_the_bits_that_the_neighbour_has() {
    matrix(&RANKS, |comm| {
        let rank = comm.rank();
        let size = comm.size();
        // Every rank replaces its numbers by the next rank's: the sum over neighbours is that rank's copy.
        let edge = |to| Edge { from: (to + 1) % size, to, source: 1.0, destination: 1.0 };
        let shift = Mixing::of_edges(vec![0.0; size], &(0..size).map(edge).collect::<Vec<_>>())?;
        for codec in codecs() {
            let mut encoding = Encoding::new(codec).with_feedback(Feedback::Difference);
            let mut x = numbers(rank, 257);
            for round in 0..5 {
                x[round] += 1.0;
                comm.blocking().gossip_encoded(&mut x, &shift, 0, &mut encoding, choco(0.1))?;
                let mut copies = vec![0f32; 257 * size];
                comm.blocking().all_gather(&remembered(&encoding, "own"), &mut copies)?;
                let next = &copies[(rank + 1) % size * 257..][..257];
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(&remembered(&encoding, "neighbours")) == bits(next), "round {round}");
            }
        }
        Ok(())
    });
}

#[test]
fn every_rule_and_codec_at_every_length_sends_the_bytes_of_its_messages() {
    matrix(&RANKS, |comm| {
        for codec in codecs() {
            for (feedback, options) in rules() {
                for len in [0, 1, 2, 300] {
                    let mut encoding = Encoding::new(Arc::clone(&codec)).with_feedback(feedback);
                    let mut x = numbers(comm.rank(), len);
                    let mixing = Topology::Torus(None).mixing(comm.size(), 0)?;
                    let before = comm.world().traffic().bytes_sent();
                    comm.blocking().gossip_encoded(&mut x, &mixing, 0, &mut encoding, options)?;
                    let sent = comm.world().traffic().bytes_sent() - before;
                    let message = codec.encoded_len(len) + HEADER_BYTES;
                    let destinations = mixing.destinations(comm.rank()).len();
                    assert_eq!(
                        sent,
                        (destinations * message) as u64,
                        "{} of {len}, {feedback}",
                        codec.name()
                    );
                    assert!(x.iter().all(|x| x.is_finite()));
                    let state = match feedback {
                        Feedback::None => 0,
                        Feedback::Error => 4 * len,
                        _ => 8 * len + 8,
                    };
                    assert_eq!(encoding.state().bytes(), state, "{feedback}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_restored_state_goes_on_bit_by_bit() {
    matrix(&RANKS, |comm| {
        for (feedback, options) in rules() {
            let make = || Encoding::new(Arc::new(MinMax8::default())).with_feedback(feedback).with_seed(3);
            let mut straight = make();
            let mut mine = numbers(comm.rank(), 100);
            let go = |x: &mut [f32], encoding: &mut Encoding| {
                (0..4).try_for_each(|_| {
                    comm.blocking().gossip_encoded(x, &Topology::Ring, 0, encoding, options)
                })
            };
            go(&mut mine, &mut straight)?;
            let mut restored = make();
            let mut again = mine.clone();
            let copy = |(name, buffer): (&str, &Buffer)| (name.to_owned(), buffer.copied().unwrap());
            let entries: Vec<_> = straight.state().entries().map(copy).collect();
            restored.state_mut().restore(straight.state().operations(), entries);
            go(&mut mine, &mut straight)?;
            go(&mut again, &mut restored)?;
            assert_eq!(mine, again, "{feedback}");
        }
        Ok(())
    });
}

#[test]
fn another_graph_needs_the_state_to_be_synchronized() {
    matrix(&RANKS, |comm| {
        let mut x = numbers(comm.rank(), 50);
        let mut encoding = encoding(Half::F16, Feedback::Difference);
        let star = Topology::Star.mixing(comm.size(), 0)?;
        let one_way = Mixing::of_edges(vec![1.0; comm.size()], &[])?;
        let gossip = |x: &mut Vec<f32>, graph: &Mixing, encoding: &mut Encoding| {
            comm.blocking().gossip_encoded(x, graph, 0, encoding, choco(1.0))
        };
        gossip(&mut x, &star, &mut encoding)?;
        let error = gossip(&mut x, &one_way, &mut encoding).unwrap_err();
        assert!(error.to_string().contains("gossip_synchronize"), "{error}");
        // After that, a round continues as from the beginning, with exact copies.
        let complete = Topology::Complete.mixing(comm.size(), 0)?;
        let buffer = testing::buffer(&x);
        comm.block_on(comm.gossip_synchronize(&buffer, &complete, 0, &mut encoding))?;
        assert_eq!(remembered(&encoding, "own"), x);
        let (mean, _) = distance(comm, &x, None)?;
        gossip(&mut x, &complete, &mut encoding)?;
        let far = x.iter().zip(&mean).map(|(x, mean)| (f64::from(*x) - mean).abs()).fold(0.0, f64::max);
        assert!(far < 1e-6, "{far}");
        Ok(())
    });
}
