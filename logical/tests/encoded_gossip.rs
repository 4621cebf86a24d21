//! Gossip at low precision: what each feedback promises, as theory and experiment have it, and its bytes, state and errors.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use hexagram_logical::codec::{Codec, CodecError, Half, MinMax8, Noise, Properties, Sign};
use hexagram_logical::decentralized::{Difference, GossipOptions, Mixing, Schedule, Topology};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{cases, spawn};
use hexagram_logical::{Communicator, Error, HEADER_BYTES, ReduceOp, Result, TransportKind};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const RANKS: [usize; 4] = [2, 3, 4, 8];
const DCD: GossipOptions = GossipOptions { consensus: 1.0, difference: Difference::AfterMixing };

fn choco(consensus: f64) -> GossipOptions {
    GossipOptions { consensus, ..GossipOptions::default() }
}

/// What a codec would make of the numbers, which travel as they are: for oracles, which do not depend on the bytes.
#[derive(Debug, Clone, Copy)]
enum Lossy {
    Identity,
    /// The tenth that is largest in magnitude.
    TopTenth,
    /// ‖x‖₂ sgn(x) times |x| / ‖x‖₂ rounded to multiples of 1 / levels, up or down at random.
    Qsgd(u32),
    /// x and noise of mean 0 and variance ½, whatever x is.
    Noisy,
    /// Nothing that can be decoded.
    Damaged,
}

/// Uniform in [0, 1).
fn draw(seed: u64, at: usize) -> f64 {
    let mut bits = seed ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..3 {
        bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

impl Lossy {
    fn apply(self, x: &[f32], seed: u64) -> Vec<f32> {
        let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        match self {
            Lossy::Identity | Lossy::Damaged => x.to_vec(),
            Lossy::TopTenth => {
                let mut order: Vec<usize> = (0..x.len()).collect();
                order.sort_by(|a, b| x[*b].abs().total_cmp(&x[*a].abs()));
                let mut kept = vec![0.0; x.len()];
                order[..x.len() / 10].iter().for_each(|at| kept[*at] = x[*at]);
                kept
            }
            Lossy::Qsgd(_) if norm == 0.0 => x.to_vec(),
            Lossy::Qsgd(levels) => {
                let round = |(at, x): (usize, &f32)| {
                    let scaled = f64::from(x.abs() / norm) * f64::from(levels);
                    let up = f64::from(draw(seed, at) < scaled.fract());
                    x.signum() * norm * ((scaled.floor() + up) / f64::from(levels)) as f32
                };
                x.iter().enumerate().map(round).collect()
            }
            Lossy::Noisy => {
                let noise = |at| (draw(seed, at) - 0.5) * 6f64.sqrt();
                x.iter().enumerate().map(|(at, x)| x + noise(at) as f32).collect()
            }
        }
    }
}

impl Codec for Lossy {
    fn name(&self) -> String {
        format!("{self:?}")
    }
    fn properties(&self) -> Properties {
        Properties { unbiased: false, contraction: None, linear: false, noise: Noise::Relative }
    }
    fn encoded_len(&self, len: usize) -> usize {
        4 * len
    }
    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> std::result::Result<usize, CodecError> {
        let bytes = to.chunks_exact_mut(4);
        bytes.zip(self.apply(from, seed)).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
        Ok(4 * from.len())
    }
    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> std::result::Result<(), CodecError> {
        if matches!(self, Lossy::Damaged) {
            return Err(CodecError::damaged("it never can"));
        }
        let numbers = from.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]));
        to.iter_mut().zip(numbers).for_each(|(to, x)| *to += weight * x);
        Ok(())
    }
}

fn encoding(codec: impl Codec + 'static, feedback: Feedback) -> Encoding {
    Encoding::new(Arc::new(codec)).with_feedback(feedback).with_seed(11)
}

/// Numbers as if drawn from a normal distribution.
fn numbers(rank: usize, len: usize) -> Vec<f32> {
    let uniform = |at: usize, which: usize| draw(rank as u64 * 1000 + 17, 12 * at + which);
    (0..len).map(|at| ((0..12).map(|which| uniform(at, which)).sum::<f64>() - 6.0) as f32).collect()
}

/// The mean over ranks, and ‖X − X̄‖² + ‖X − X̂‖², where `copy` is x̂, if there is one.
fn distance(comm: &Communicator, x: &[f32], copy: Option<&[f32]>) -> Result<(Vec<f64>, f64)> {
    let mut mean: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    comm.blocking().all_reduce(&mut mean, ReduceOp::Mean)?;
    let squared = |(x, other): (&f32, f64)| (f64::from(*x) - other).powi(2);
    let mut sum = [x.iter().zip(mean.iter().copied()).map(squared).sum::<f64>()];
    if let Some(copy) = copy {
        sum[0] += x.iter().zip(copy.iter().map(|x| f64::from(*x))).map(squared).sum::<f64>();
    }
    comm.blocking().all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok((mean, sum[0]))
}

/// A named part of the state.
fn remembered(encoding: &Encoding, name: &str) -> Vec<f32> {
    let (_, buffer) = encoding.state().entries().find(|(entry, _)| *entry == name).unwrap();
    buffer.host::<f32>().unwrap().to_vec()
}

/// Ranks that gossip from normal numbers: how far they are from the mean after each of some rounds, in proportion to the
/// beginning, squared; and how far the mean has moved.
fn squared_error(
    ranks: usize,
    len: usize,
    codec: Lossy,
    (feedback, options): (Feedback, GossipOptions),
    after: &[u64],
) -> (Vec<f64>, f64) {
    let outcome = spawn(TransportKind::Thread, ranks, |comm| {
        let (mut x, mut encoding) = (numbers(comm.rank(), len), encoding(codec, feedback));
        if options.difference == Difference::AfterMixing {
            let buffer = hexagram_logical::Buffer::from_slice(&x)?;
            comm.block_on(comm.gossip_synchronize(&buffer, &Topology::Ring, 0, &mut encoding))?;
        }
        let (first, begun) = distance(&comm, &x, None)?;
        let mut errors = Vec::new();
        for round in 1..=after[after.len() - 1] {
            comm.blocking().gossip_encoded(&mut x, &Topology::Ring, round, &mut encoding, options)?;
            if after.contains(&round) {
                let copy = (feedback == Feedback::Difference).then(|| remembered(&encoding, "own"));
                errors.push(distance(&comm, &x, copy.as_deref())?.1 / begun);
            }
        }
        let (last, _) = distance(&comm, &x, None)?;
        let moved = first.iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        Ok((errors, moved))
    });
    outcome.unwrap().swap_remove(0)
}

#[test]
fn an_exact_codec_contracts_by_the_consensus_step() {
    // On the slowest mode of a ring, 1 − λ is its σ₂.
    let (ranks, gamma) = (8usize, 0.6);
    let angle = 2.0 * std::f64::consts::PI / ranks as f64;
    let lambda = 1.0 - (1.0 + 2.0 * angle.cos()) / 3.0;
    spawn(TransportKind::Thread, ranks, |comm| {
        let first = (angle * comm.rank() as f64).cos();
        let (mut x, mut encoding) = ([first as f32; 3], encoding(Lossy::Identity, Feedback::Difference));
        for round in 1..=12 {
            comm.blocking().gossip_encoded(&mut x, &Topology::Ring, 0, &mut encoding, choco(gamma))?;
            let want = first * (1.0 - gamma * lambda).powi(round);
            assert!((f64::from(x[0]) - want).abs() < 1e-6, "{x:?} in round {round} is not {want}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn choco_agrees_on_the_mean_though_nine_tenths_are_left_out() {
    let (errors, moved) =
        squared_error(16, 200, Lossy::TopTenth, (Feedback::Difference, choco(0.34)), &[100, 250]);
    let per_round = (errors[1] / errors[0]).powf(1.0 / 150.0);
    assert!((0.95..0.98).contains(&per_round), "{per_round}");
    assert!(moved < 1e-5, "the mean moved by {moved}");
}

#[test]
fn choco_with_the_proven_consensus_step_is_slow_and_sure() {
    let (errors, _) =
        squared_error(16, 200, Lossy::TopTenth, (Feedback::Difference, choco(3.193e-5)), &[100, 200]);
    let per_round = (errors[1] / errors[0]).powf(1.0 / 100.0);
    assert!((0.9998..0.99999686).contains(&per_round), "{per_round}");
}

#[test]
fn without_feedback_gossip_stalls_where_differences_go_on() {
    let rounds = &[40, 80, 120];
    let (naive, moved) = squared_error(8, 300, Lossy::Qsgd(64), (Feedback::None, choco(1.0)), rounds);
    assert!(naive[1] > 1e-3 && naive[2] > 1e-3, "{naive:?}");
    assert!(moved < 1e-5, "the mean moved by {moved}");
    let (differences, _) = squared_error(8, 300, Lossy::Qsgd(64), (Feedback::Difference, choco(1.0)), rounds);
    assert!(differences[2] < 1e-9, "{differences:?}");
}

#[test]
fn deep_squeeze_comes_nearer_than_no_feedback_and_keeps_the_mean() {
    let rounds = &[150];
    let (naive, _) = squared_error(8, 300, Lossy::TopTenth, (Feedback::None, choco(0.05)), rounds);
    let (squeezed, moved) = squared_error(8, 300, Lossy::TopTenth, (Feedback::Error, choco(0.05)), rounds);
    assert!(squeezed[0] < 0.5 * naive[0], "{squeezed:?} {naive:?}");
    assert!(moved < 1e-5, "the mean moved by {moved}");
}

#[test]
fn dcd_agrees_with_fine_codecs_and_diverges_with_coarse_ones() {
    let error = |codec| squared_error(16, 500, codec, (Feedback::Difference, DCD), &[60]).0[0];
    let fine = error(Lossy::Qsgd(16));
    assert!(fine < 0.05, "{fine}");
    let coarse = error(Lossy::Qsgd(1));
    assert!(coarse.is_nan() || coarse > 10.0, "{coarse}");
}

#[test]
fn ecd_estimates_get_better_as_one_over_t() {
    // With one rank, the sum over neighbours is its estimate of itself. Every element is a trial.
    spawn(TransportKind::Thread, 1, |comm| {
        let (mut x, mut encoding) = (vec![0f32; 3000], encoding(Lossy::Noisy, Feedback::Extrapolation));
        for t in 1..=300u32 {
            x.iter_mut().enumerate().for_each(|(at, x)| *x += 0.01 * (at as f32 + t as f32).sin());
            comm.blocking().gossip_encoded(&mut x, &Topology::Ring, 0, &mut encoding, choco(1.0))?;
            let estimates = remembered(&encoding, "neighbours");
            let squared = estimates.iter().zip(&x).map(|(a, b)| f64::from(a - b).powi(2));
            let error = squared.sum::<f64>() / x.len() as f64;
            // After t messages the estimate is of step t + 1.
            match t {
                9 => assert!((0.06..0.1).contains(&error), "{error} at 10"),
                99 => assert!((0.0055..0.01).contains(&error), "{error} at 100"),
                299 => assert!(error < 1.0 / 300.0, "{error} at 300"),
                _ => {}
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn ecd_ranks_agree_although_codecs_add_noise() {
    let error =
        |rounds| squared_error(8, 300, Lossy::Noisy, (Feedback::Extrapolation, choco(1.0)), &[rounds]).0[0];
    let (early, late) = (error(10), error(200));
    assert!(late < 0.25 * early, "{early} after 10 rounds, {late} after 200");
}

/// Runs `test` on every transport and number of ranks.
fn matrix(test: impl Fn(&Communicator) -> Result<()> + Sync) {
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, |comm| test(&comm)).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}

#[test]
fn the_sum_over_neighbours_stays_near_what_they_have() {
    for (transport, ranks) in cases(&[4]) {
        spawn(transport, ranks, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            let (mut x, mut encoding) =
                (numbers(rank, 50), encoding(MinMax8::default(), Feedback::Difference));
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
fn what_a_rank_knows_of_a_neighbour_has_the_bits_that_the_neighbour_has() {
    matrix(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        // Everyone takes all of the next rank's: the sum over neighbours is that rank's copy.
        let edge = |to| hexagram_logical::decentralized::Edge {
            from: (to + 1) % size,
            to,
            source: 1.0,
            destination: 1.0,
        };
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
    matrix(|comm| {
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
    matrix(|comm| {
        for (feedback, options) in rules() {
            let make = || Encoding::new(Arc::new(MinMax8::default())).with_feedback(feedback).with_seed(3);
            let (mut straight, mut mine) = (make(), numbers(comm.rank(), 100));
            let go = |x: &mut [f32], encoding: &mut Encoding| {
                (0..4).try_for_each(|_| {
                    comm.blocking().gossip_encoded(x, &Topology::Ring, 0, encoding, options)
                })
            };
            go(&mut mine, &mut straight)?;
            let (mut restored, mut again) = (make(), mine.clone());
            let copy = |(name, buffer): (&str, &hexagram_logical::Buffer)| {
                let copied = hexagram_logical::Buffer::zeroed(buffer.dtype(), buffer.len()).unwrap();
                let whole = 0..buffer.len();
                let bytes = buffer.read(whole.clone()).unwrap();
                copied.write(whole).unwrap().bytes_mut().copy_from_slice(bytes.bytes());
                (name.to_owned(), copied)
            };
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
    matrix(|comm| {
        let (mut x, mut encoding) = (numbers(comm.rank(), 50), encoding(Half::F16, Feedback::Difference));
        let star = Topology::Star.mixing(comm.size(), 0)?;
        let one_way = Mixing::of_edges(vec![1.0; comm.size()], &[])?;
        let gossip = |x: &mut Vec<f32>, graph: &Mixing, encoding: &mut Encoding| {
            comm.blocking().gossip_encoded(x, graph, 0, encoding, choco(1.0))
        };
        gossip(&mut x, &star, &mut encoding)?;
        let error = gossip(&mut x, &one_way, &mut encoding).unwrap_err();
        assert!(error.to_string().contains("gossip_synchronize"), "{error}");
        // After that, a round goes on as from the beginning, with exact copies.
        let complete = Topology::Complete.mixing(comm.size(), 0)?;
        let buffer = hexagram_logical::Buffer::from_slice(&x)?;
        comm.block_on(comm.gossip_synchronize(&buffer, &complete, 0, &mut encoding))?;
        assert_eq!(remembered(&encoding, "own"), x);
        let (mean, _) = distance(comm, &x, None)?;
        gossip(&mut x, &complete, &mut encoding)?;
        let far = x.iter().zip(&mean).map(|(x, mean)| (f64::from(*x) - mean).abs()).fold(0.0, f64::max);
        assert!(far < 1e-6, "{far}");
        Ok(())
    });
}

#[test]
fn wrong_calls_are_refused_before_anything_is_sent() {
    matrix(|comm| {
        let before = comm.world().traffic().bytes_sent();
        let refused = |outcome: Result<()>, about: &str| {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains(about), "{error}");
        };
        let mut half = encoding(Half::F16, Feedback::Difference);
        let gossip = |graph: &dyn Schedule, encoding: &mut Encoding, consensus| {
            comm.blocking().gossip_encoded(&mut [1f32; 4], graph, 0, encoding, choco(consensus))
        };
        for consensus in [0.0, -1.0, 1.5, f64::NAN] {
            refused(gossip(&Topology::Ring, &mut half, consensus), "no consensus step");
        }
        let uneven = Mixing::push(comm.size(), |rank| (0..rank).collect::<BTreeSet<_>>())?;
        refused(gossip(&uneven, &mut half, 1.0), "does not add up");
        refused(gossip(&Topology::Ring, &mut encoding(Half::F16, Feedback::TwoLevel), 1.0), "two-level");
        let mut wide = hexagram_logical::Buffer::from_slice(&[1f64; 4])?;
        let outcome = comm.gossip_encoded(&mut wide, &Topology::Ring, 0, &mut half, choco(1.0));
        refused(comm.block_on(outcome), "f32, not f64");
        let mut none = encoding(Half::F16, Feedback::None);
        let narrow = hexagram_logical::Buffer::from_slice(&[1f32; 4])?;
        refused(
            comm.block_on(comm.gossip_synchronize(&narrow, &Topology::Ring, 0, &mut none)),
            "no feedback",
        );
        assert_eq!(comm.world().traffic().bytes_sent(), before);
        Ok(())
    });
}

/// Runs a round on 3 ranks of every transport and gives `check` the errors; nobody errs while others still open.
fn all_fail(body: impl Fn(&Communicator) -> Result<()> + Sync, check: impl Fn(usize, Error)) {
    for transport in TransportKind::ALL {
        let open = std::sync::Barrier::new(3);
        let errors = spawn(transport, 3, |comm| {
            comm.set_deadline(Duration::from_secs(60));
            open.wait();
            Ok(body(&comm).and_then(|()| comm.blocking().barrier()).err())
        });
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            check(rank, error.unwrap_or_else(|| panic!("rank {rank} over {transport} saw no error")));
        }
    }
}

#[test]
fn ranks_that_encode_differently_are_told_so() {
    let disagree = |other: fn() -> (Encoding, GossipOptions)| {
        all_fail(
            |comm| {
                let usual = || (encoding(Half::F16, Feedback::Difference), choco(0.5));
                let (mut encoding, options) = if comm.rank() == 1 { other() } else { usual() };
                comm.blocking().gossip_encoded(&mut [1f32; 9], &Topology::Ring, 0, &mut encoding, options)
            },
            |rank, error| {
                let text = error.to_string();
                assert!(text.contains("disagree") && text.contains("codec #"), "rank {rank}: {text}");
            },
        );
    };
    disagree(|| (encoding(Half::BF16, Feedback::Difference), choco(0.5)));
    disagree(|| (encoding(Half::F16, Feedback::Error), choco(0.5)));
    disagree(|| (encoding(Half::F16, Feedback::Difference), choco(0.25)));
    disagree(|| (encoding(Half::F16, Feedback::Difference), GossipOptions { consensus: 0.5, ..DCD }));
}

#[test]
fn what_cannot_be_encoded_or_decoded_ends_everyones() {
    all_fail(
        |comm| {
            let mut x = [1f32; 40];
            x[17] = if comm.rank() == 1 { f32::NAN } else { 0.0 };
            let mut encoding = encoding(MinMax8::default(), Feedback::None);
            comm.blocking().gossip_encoded(&mut x, &Topology::Ring, 0, &mut encoding, choco(1.0))
        },
        |rank, error| {
            let text = error.to_string();
            assert!(text.contains("element 17 is NaN on rank 1"), "rank {rank}: {text}");
        },
    );
    all_fail(
        |comm| {
            let mut encoding = encoding(Lossy::Damaged, Feedback::None);
            comm.blocking().gossip_encoded(&mut [1f32; 4], &Topology::Ring, 0, &mut encoding, choco(1.0))
        },
        |rank, error| {
            let text = error.to_string();
            assert!(text.contains("it never can"), "rank {rank}: {text}");
        },
    );
}
