//! DiLoCo and streaming DiLoCo against local SGD, against each other, against their rules by hand, and the bytes in
//! their headers.

use hexagram_algorithms::diloco::{DiLoCo, Outer};
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::codec::E3M0;
use hexagram_algorithms::logical::encoding::Encoding;
use hexagram_algorithms::logical::testing::{Reference, cases, spawn, spawn_hosts};
use hexagram_algorithms::logical::{Communicator, Element, ReduceOp, Result, TransportKind};
use hexagram_algorithms::streaming_diloco::{Precision, StreamingDiLoCo};
use hexagram_algorithms::testing::{Setup, Trainer, payload_per_step};
use hexagram_algorithms::{Adam, AnyAlgorithm, EngineOptions};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SGD: Outer = Outer { learning_rate: 1.0, momentum: 0.0 };
const NESTEROV: Outer = Outer { learning_rate: 0.7, momentum: 0.9 };
const RATE: f64 = 0.1;
const ELEMENTS: usize = 50;

fn curvature(rank: usize) -> f64 {
    [1.0, 3.0, 0.5, 2.0][rank % 4]
}

fn minimum(rank: usize, at: usize) -> f64 {
    ((rank * 13 + at * 7) % 11) as f64 - 5.0
}

/// Replicas of all ranks after some steps, with a settle after the steps in `settle`.
fn train(
    transport: TransportKind,
    ranks: usize,
    steps: u64,
    settle: &[u64],
    algorithm: &(dyn Fn() -> AnyAlgorithm + Sync),
) -> Vec<Vec<f64>> {
    let run = |comm: Communicator| replica(&comm, EngineOptions::default(), steps, settle, algorithm());
    spawn(transport, ranks, run).unwrap_or_else(|error| panic!("{transport} × {ranks}: {error}"))
}

/// One rank's part of it.
fn replica(
    comm: &Communicator,
    engine: EngineOptions,
    steps: u64,
    settle: &[u64],
    algorithm: AnyAlgorithm,
) -> Result<Vec<f64>> {
    let begin: Vec<f64> = (0..ELEMENTS).map(|at| at as f64 / 10.0).collect();
    let setup = Setup { learning_rate: RATE, engine, ..Setup::default() };
    let mut trainer = Trainer::new(comm, algorithm, setup, &[begin])?;
    let rank = comm.rank();
    for step in 0..steps {
        trainer.step(|_, x| {
            x.iter().enumerate().map(|(at, x)| curvature(rank) * (x - minimum(rank, at))).collect()
        })?;
        if settle.contains(&step) {
            trainer.engine().settle()?;
        }
    }
    Ok(trainer.parameters()?.remove(0))
}

/// One element under the rule of streaming DiLoCo, on all ranks.
struct Scalar {
    x: Vec<f64>,
    theta: f64,
    velocity: f64,
    /// The step after which the change is due, and Δ.
    change: Option<(u64, f64)>,
}

impl Scalar {
    fn take_in(&mut self, rule: &StreamingDiLoCo, step: u64) {
        let Some((due, change)) = self.change else { return };
        if due == step {
            let Outer { learning_rate, momentum } = rule.outer;
            self.velocity = momentum * self.velocity + change;
            self.theta -= learning_rate * (change + momentum * self.velocity);
            self.x.iter_mut().for_each(|x| *x = rule.own * *x + (1.0 - rule.own) * self.theta);
            self.change = None;
        }
    }
}

/// The expected result of [`train`], from the rule.
fn reference(rule: &StreamingDiLoCo, ranks: usize, steps: u64) -> Vec<Vec<f64>> {
    let element = |at: usize| -> Vec<f64> {
        let begins = |fragment: u64| ELEMENTS * fragment as usize / rule.fragments as usize;
        let fragment = (0..rule.fragments).rfind(|fragment| begins(*fragment) <= at).unwrap();
        let begin = at as f64 / 10.0;
        let mut it = Scalar { x: vec![begin; ranks], theta: begin, velocity: 0.0, change: None };
        for step in 1..=steps {
            for (rank, x) in it.x.iter_mut().enumerate() {
                *x -= RATE * curvature(rank) * (*x - minimum(rank, at));
            }
            it.take_in(rule, step);
            if (step + fragment * rule.period / rule.fragments).is_multiple_of(rule.period) {
                let change = it.theta - it.x.iter().sum::<f64>() / ranks as f64;
                it.change = Some((step + rule.delay, change));
                it.take_in(rule, step);
            }
        }
        it.x
    };
    let columns: Vec<Vec<f64>> = (0..ELEMENTS).map(element).collect();
    (0..ranks).map(|rank| columns.iter().map(|column| column[rank]).collect()).collect()
}

fn assert_close(found: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!((found - expected).abs() < 1e-12, "{what}: {found} and not {expected}");
    }
}

#[test]
fn with_outer_sgd_it_is_local_sgd() {
    let train =
        |algorithm: &(dyn Fn() -> AnyAlgorithm + Sync)| train(TransportKind::Thread, 4, 50, &[], algorithm);
    let diloco = train(&|| DiLoCo { period: 8, outer: SGD, ..DiLoCo::default() }.into());
    let local = train(&|| LocalSgd { period: 8, ..LocalSgd::default() }.into());
    for (one, other) in diloco.iter().flatten().zip(local.iter().flatten()) {
        // 4e-16, relative to the numbers subtracted and added.
        assert!((one - other).abs() < 1e-14, "{one} and not {other}");
    }
}

#[test]
fn its_steps_are_those_of_its_rule() {
    for (transport, ranks) in cases(&[1, 3, 4]) {
        let found = train(transport, ranks, 40, &[], &|| {
            DiLoCo { period: 5, outer: NESTEROV, ..DiLoCo::default() }.into()
        });
        assert!(found.iter().all(|replica| *replica == found[0]), "replicas differ after an outer step");
        let rule = streaming(5, 1, 0, 0.0);
        assert_close(&found, &reference(&rule, ranks, 40), &format!("{transport} × {ranks}"));
    }
}

fn streaming(period: u64, fragments: u64, delay: u64, own: f64) -> StreamingDiLoCo {
    StreamingDiLoCo { period, fragments, delay, own, outer: NESTEROV, precision: Precision::Full }
}

#[test]
fn streaming_in_one_fragment_without_delay_is_diloco() {
    for steps in [20, 23] {
        let train = |algorithm: &(dyn Fn() -> AnyAlgorithm + Sync)| {
            train(TransportKind::Shm, 4, steps, &[], algorithm)
        };
        let diloco = train(&|| DiLoCo { period: 5, outer: NESTEROV, ..DiLoCo::default() }.into());
        assert_eq!(train(&|| streaming(5, 1, 0, 0.0).into()), diloco);
    }
}

#[test]
fn streamings_steps_are_those_of_its_rule_settled_or_not() {
    let rules =
        [(6, 3, 2, 0.5), (5, 1, 4, 0.0), (4, 7, 3, 0.25), (3, 80, 0, 0.5), (1, 1, 0, 0.5), (7, 2, 0, 1.0)];
    for (period, fragments, delay, own) in rules {
        let rule = streaming(period, fragments, delay, own);
        // All transports, once.
        let cases = if fragments == 3 { cases(&[1, 3]) } else { vec![(TransportKind::Thread, 3)] };
        for (transport, ranks) in cases {
            let expected = reference(&rule, ranks, 29);
            let settled: Vec<u64> = (0..29).step_by(3).collect();
            for settle in [&[][..], &settled] {
                let found = train(transport, ranks, 29, settle, &|| rule.into());
                assert_close(&found, &expected, &format!("{rule:?}, {transport} × {ranks}"));
            }
        }
    }
}

#[test]
fn streaming_among_hosts_makes_the_same_steps_and_sends_less_to_other_hosts() {
    let rule = streaming(6, 3, 2, 0.5);
    let train = |hierarchical| {
        let found = spawn_hosts(&[0, 0, 0, 1], |comm| {
            let engine = EngineOptions { hierarchical, ..EngineOptions::default() };
            let replica = replica(&comm, engine, 29, &[20], rule.into())?;
            comm.blocking().barrier()?;
            Ok((replica, comm.world().traffic().bytes_sent_by(TransportKind::Tcp)))
        });
        let (replicas, sent): (Vec<_>, Vec<_>) = found.unwrap().into_iter().unzip();
        assert_close(
            &replicas,
            &reference(&rule, 4, 29),
            &format!("two hosts, hierarchical: {hierarchical}"),
        );
        sent.iter().sum::<u64>()
    };
    let flat = train(false);
    let sent = train(true);
    assert!(sent < flat, "{sent} bytes, and {flat} without a hierarchy");
}

#[test]
fn a_change_is_on_its_way_during_the_delay_and_no_longer() {
    let period = 4;
    let delay = 3;
    let (arrived, arrivals) = channel();
    let arrivals = Mutex::new(arrivals);
    spawn(TransportKind::Shm, 3, |comm| {
        let mut trainer = Trainer::new(
            &comm,
            Arc::new(streaming(period, 1, delay, 0.5)),
            Setup::default(),
            &[vec![1.0f32]],
        )?;
        for step in 0..20 {
            trainer.step(|_, x| {
                // Rank 1 stops after its change was sent, until the others are about to need it.
                if comm.rank() == 1 && step == period {
                    let arrivals = arrivals.lock().unwrap();
                    (0..2).for_each(|_| arrivals.recv_timeout(Duration::from_secs(120)).unwrap());
                }
                x.to_vec()
            })?;
            if comm.rank() != 1 && step + 2 == period + delay {
                arrived.send(()).unwrap();
            }
        }
        trainer.engine().settle()
    })
    .unwrap();
}

#[test]
fn adam_inside_comes_near_the_minimum_in_any_precision() {
    let run = |algorithm: fn() -> AnyAlgorithm| {
        let found = spawn(TransportKind::Thread, 4, |comm| {
            let setup =
                Setup { learning_rate: 0.01, optimizer: Arc::new(Adam::default()), ..Setup::default() };
            let begin: Vec<f32> = (0..600).map(|at| at as f32 / 100.0).collect();
            let mut trainer = Trainer::new(&comm, algorithm(), setup, &[begin])?;
            for _ in 0..800 {
                trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f32).collect())?;
            }
            trainer.engine().settle()?;
            let x = trainer.parameters()?.remove(0);
            Ok(x.iter().map(|x| (f64::from(*x) - 1.5).abs()).fold(0.0, f64::max))
        });
        found.unwrap().into_iter().fold(0.0, f64::max)
    };
    let found = [
        run(|| DiLoCo::default().into()),
        run(|| StreamingDiLoCo::default().into()),
        run(|| StreamingDiLoCo { precision: Precision::Bits8, ..StreamingDiLoCo::default() }.into()),
        run(|| StreamingDiLoCo { precision: Precision::Bits4, ..StreamingDiLoCo::default() }.into()),
    ];
    // Adam scales steps differently on each rank, so that ranks agree at a point near the minimum; the effect of
    // precision is much smaller.
    let [diloco, full, bits8, bits4] = found;
    assert!(diloco < 0.5 && full < 0.8, "{found:?}");
    assert!((bits8 - full).abs() < 0.002 && (bits4 - full).abs() < 0.04, "{found:?}");
}

/// Rounds of two steps with Δᵢ in 4 bits, from the rule in f64 and the codec alone, and the codec error in them.
#[test]
fn four_bits_are_added_up_as_they_come_and_lose_a_ninth_at_most() {
    let elements = 1300;
    let gradient = |rank: usize, step: usize, at: usize| {
        ((at * 7 + rank * 31 + step * 13) % 101) as f32 / 50.0 - 0.9 + (at % 3) as f32
    };
    let rule = StreamingDiLoCo { precision: Precision::Bits4, ..streaming(2, 1, 0, 0.0) };
    for (transport, ranks) in cases(&[1, 3]) {
        let found = spawn(transport, ranks, |comm| {
            let mut trainer = Trainer::new(&comm, rule, Setup::default(), &[vec![0.0f32; elements]])?;
            for step in 0..8 {
                trainer.step(|_, x| (0..x.len()).map(|at| gradient(comm.rank(), step, at)).collect())?;
            }
            Ok(trainer.parameters()?.remove(0))
        });
        let mut reference =
            Reference::new(&Encoding::new(Arc::new(E3M0::default())), ranks, elements, ReduceOp::Mean);
        let mut theta = vec![0.0; elements];
        let mut velocity = vec![0.0; elements];
        for round in 0..4 {
            let own = |rank: usize, at: usize| {
                RATE * f64::from(gradient(rank, 2 * round, at) + gradient(rank, 2 * round + 1, at))
            };
            let change =
                reference.all_reduce_sparse(|rank| (0..elements).map(|at| own(rank, at) as f32).collect());
            let mean = |at| (0..ranks).map(|rank| own(rank, at)).sum::<f64>() / ranks as f64;
            let mut lost = 0.0;
            let mut all = 0.0;
            for (at, change) in change.unwrap().iter().enumerate() {
                lost += (f64::from(*change) - mean(at)).powi(2);
                all += (0..ranks).map(|rank| own(rank, at).powi(2)).sum::<f64>() / ranks as f64;
                velocity[at] = 0.9 * velocity[at] + f64::from(*change);
                theta[at] -= 0.7 * (f64::from(*change) + 0.9 * velocity[at]);
            }
            assert!(lost <= all / 9.0, "{lost} of {all}");
        }
        for (found, expected) in found.unwrap().iter().flat_map(|replica| replica.iter().zip(&theta)) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-5,
                "{transport} × {ranks}: {found}, {expected}"
            );
        }
    }
}

#[test]
fn the_bytes_are_those_of_their_headers() {
    let ranks = 4;
    let elements = 4 * 32768;
    let period = 8;
    let payload = |algorithm: &(dyn Fn() -> AnyAlgorithm + Sync)| {
        payload_per_step(ranks, elements, 2 * period, algorithm).unwrap()
    };
    let expected = 2.0 * (ranks - 1) as f64 / ranks as f64 * (elements * 4) as f64 / period as f64;
    let outer = NESTEROV;
    let found = payload(&|| DiLoCo { period: period as u64, outer, ..DiLoCo::default() }.into());
    assert!((found - expected).abs() < 1e-9, "{found} and not {expected}");
    for fragments in [1, 4] {
        let rule = streaming(period as u64, fragments, 1, 0.5);
        let found = payload(&|| rule.into());
        let agreed = (ranks - 1) as f64 * fragments as f64 / period as f64;
        assert!((found - expected - agreed).abs() < 1e-9, "{found} and not {expected} + {agreed}");
        let blocks = (1.0 + 1.0 / 64.0) / period as f64;
        let all_gathered = (ranks - 1) as f64 * (elements / 2) as f64 * blocks;
        let scattered = 2.0 * (ranks - 1) as f64 / ranks as f64 * elements as f64 * blocks;
        for (precision, expected) in [(Precision::Bits8, scattered), (Precision::Bits4, all_gathered)] {
            let found = payload(&|| StreamingDiLoCo { precision, ..rule }.into()) - agreed;
            assert!((found - expected).abs() < 1e-9, "{precision:?}: {found} and not {expected}");
        }
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    fn refused<T: Element>(algorithm: impl hexagram_algorithms::Algorithm, zero: T, words: &str) {
        let outcome = spawn(TransportKind::Thread, 2, |comm| {
            Trainer::new(&comm, algorithm.clone(), Setup::default(), &[vec![zero]])?
                .engine()
                .initial()
                .prepare()
        });
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    refused(streaming(4, 1, 4, 0.5), 0f32, "delay of streaming-diloco is 4");
    let encoded = StreamingDiLoCo { precision: Precision::Bits4, ..StreamingDiLoCo::default() };
    refused(encoded, 0f64, "f64");
}
