//! Algorithms whose ranks average after some steps, with a codec: against their rules in f64 and the codec alone.

use crate::replicas::{Run, furthest, optimum, pull};
use hexagram_algorithms::diloco::{DiLoCo, Inner, Outer};
use hexagram_algorithms::easgd::Easgd;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::codec::{E3M0, Sign};
use hexagram_algorithms::logical::encoding::{Encoding, Feedback};
use hexagram_algorithms::logical::testing::{Reference, cases, spawn};
use hexagram_algorithms::logical::{ReduceOp, TransportKind};
use hexagram_algorithms::slowmo::SlowMo;
use hexagram_algorithms::testing::{Setup, Trainer, payload_per_step};
use hexagram_algorithms::{AnyAlgorithm, Averaging, registry};
use std::sync::Arc;

const ELEMENTS: usize = 1300;
const RATE: f64 = 0.1;
/// Number of steps in a period, and number of periods.
const PERIOD: usize = 3;
const PERIODS: usize = 5;

/// Gradients that do not depend on x, so that changes do not either.
fn gradient(rank: usize, step: usize, at: usize) -> f32 {
    ((at * 7 + rank * 31 + step * 13) % 101) as f32 / 50.0 - 0.9 + (at % 3) as f32
}

fn signs() -> Averaging {
    Averaging::encoded(Sign::in_blocks(256), Feedback::TwoLevel)
}

fn train(transport: TransportKind, ranks: usize, algorithm: AnyAlgorithm) -> Vec<Vec<f32>> {
    spawn(transport, ranks, |comm| {
        let setup = Setup { learning_rate: RATE, ..Setup::default() };
        let mut trainer = Trainer::new(&comm, algorithm.clone(), setup, &[vec![0.0f32; ELEMENTS]])?;
        for step in 0..PERIOD * PERIODS {
            trainer.step(|_, x| (0..x.len()).map(|at| gradient(comm.rank(), step, at)).collect())?;
        }
        Ok(trainer.parameters()?.remove(0))
    })
    .unwrap()
}

/// Replicas after an outer step that computes θ from θ, its state and Δ of an element.
fn by_hand(ranks: usize, outer: impl Fn(f64, &mut f64, f64) -> f64) -> Vec<f64> {
    let encoding = Encoding::new(Arc::new(Sign::in_blocks(256))).with_feedback(Feedback::TwoLevel);
    let mut reference = Reference::new(&encoding, ranks, ELEMENTS, ReduceOp::Mean);
    let mut theta = vec![0.0; ELEMENTS];
    let mut memory = vec![0.0; ELEMENTS];
    for period in 0..PERIODS {
        let steps = || PERIOD * period..PERIOD * (period + 1);
        let own =
            |rank, at| steps().map(|step| RATE * f64::from(gradient(rank, step, at))).sum::<f64>() as f32;
        let change =
            reference.all_reduce_encoded(|rank, range| range.map(|at| own(rank, at)).collect()).unwrap();
        for (at, change) in change.iter().enumerate() {
            theta[at] = outer(theta[at], &mut memory[at], f64::from(*change));
        }
    }
    theta
}

fn assert_found(algorithm: impl Into<AnyAlgorithm>, outer: impl Fn(f64, &mut f64, f64) -> f64) {
    let algorithm = algorithm.into();
    assert!(!algorithm.trigram().full_precision);
    for (transport, ranks) in cases(&[1, 3]) {
        let found = train(transport, ranks, algorithm.clone());
        assert!(found.iter().all(|replica| *replica == found[0]), "{algorithm:?} over {transport}");
        for (found, expected) in found[0].iter().zip(by_hand(ranks, &outer)) {
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{algorithm:?}: {found} and not {expected}");
        }
    }
}

#[test]
fn changes_are_what_is_encoded() {
    let period = PERIOD as u64;
    let averaging = signs;
    let local = |theta: f64, _: &mut f64, change: f64| theta - change;
    assert_found(LocalSgd { start: None, period, averaging: averaging() }, local);
    assert_found(LocalSgd { start: Some(0), period, averaging: averaging() }, local);
    let outer = Outer { learning_rate: 0.7, momentum: 0.9 };
    assert_found(DiLoCo { inner: Inner::Any, period, outer, averaging: averaging() }, |theta, v, change| {
        *v = 0.9 * *v + change;
        theta - 0.7 * (change + 0.9 * *v)
    });
    let slowmo = SlowMo { period, slow_rate: 0.8, slow_momentum: 0.6, averaging: averaging(), base: None };
    assert_found(slowmo, |theta, u, change| {
        *u = 0.6 * *u + change / RATE;
        theta - 0.8 * RATE * *u
    });
}

#[test]
fn post_local_sgd_encodes_the_change_since_its_start() {
    let start = PERIOD as u64;
    let encoded = LocalSgd { start: Some(start), period: start, averaging: signs() };
    let found = train(TransportKind::Thread, 3, encoded.into());
    let exact = LocalSgd { period: start, ..LocalSgd::post(start) };
    let exact = train(TransportKind::Thread, 3, exact.into());
    // The unsent rest of two levels stems from the last changes, not from all since the beginning.
    let far = found[0].iter().zip(&exact[0]).map(|(found, exact)| (found - exact).abs()).fold(0.0, f32::max);
    assert!(found.iter().all(|replica| *replica == found[0]) && far < 4.0, "{far}");
}

#[test]
fn easgd_encodes_the_extensions() {
    let ranks = 3;
    let algorithm = Easgd { period: 3, beta: 0.9, averaging: signs(), ..Easgd::default() };
    let found = train(TransportKind::Thread, ranks, algorithm.into());
    let encoding = Encoding::new(Arc::new(Sign::in_blocks(256))).with_feedback(Feedback::TwoLevel);
    let mut reference = Reference::new(&encoding, ranks, ELEMENTS, ReduceOp::Mean);
    let mut centre = vec![0.0; ELEMENTS];
    let mut x = vec![centre.clone(); ranks];
    for step in 0..PERIOD * PERIODS {
        let due = step % 3 == 2;
        let extension = |rank: usize, at: usize| if due { x[rank][at] - centre[at] } else { 0.0 };
        let before: Vec<Vec<f64>> =
            (0..ranks).map(|rank| (0..ELEMENTS).map(|at| extension(rank, at)).collect()).collect();
        if due {
            let mean = reference
                .all_reduce_encoded(|rank, range| range.map(|at| before[rank][at] as f32).collect())
                .unwrap();
            centre.iter_mut().zip(&mean).for_each(|(centre, mean)| *centre += 0.9 * f64::from(*mean));
        }
        for (rank, x) in x.iter_mut().enumerate() {
            for (at, x) in x.iter_mut().enumerate() {
                *x -= RATE * f64::from(gradient(rank, step, at)) + 0.3 * before[rank][at];
            }
        }
    }
    for (found, expected) in found.iter().flatten().zip(x.iter().flatten()) {
        assert!((f64::from(*found) - expected).abs() < 1e-4, "{found} and not {expected}");
    }
}

#[test]
fn the_bytes_are_those_of_the_codec_in_every_period() {
    let averaging = || Averaging::encoded(E3M0::default(), Feedback::Error);
    let elements = 4 * 32768;
    let all: [AnyAlgorithm; 4] = [
        LocalSgd { start: None, period: 4, averaging: averaging() }.into(),
        DiLoCo { period: 4, averaging: averaging(), ..DiLoCo::default() }.into(),
        SlowMo { period: 4, averaging: averaging(), ..SlowMo::default() }.into(),
        Easgd { period: 4, averaging: averaging(), ..Easgd::default() }.into(),
    ];
    let expected = 2.0 * 3.0 / 4.0 * (elements / 2) as f64 * (1.0 + 1.0 / 64.0) / 4.0;
    for algorithm in all {
        let found = payload_per_step(4, elements, 8, || algorithm.clone()).unwrap();
        assert!((found - expected).abs() < 1e-9, "{algorithm:?}: {found} and not {expected}");
    }
}

/// An element that is sent only in every 1/δ-th round steps 1/δ times as far, and an outer momentum multiplies that by
/// 1/(1 − μ): with short enough steps the changes converge, as without a codec.
#[test]
fn coarse_changes_settle_under_an_outer_momentum_where_the_step_is_short_enough() {
    let distance = |feedback: &str, gain: f64, steps: usize| {
        let spelled = format!("diloco(period=2, codec=top-k(10%), feedback={feedback})");
        let algorithm = registry::named(&spelled).unwrap();
        // γ H η / ((1 − μ) δ) is the gain, at a curvature of 1.
        let learning_rate = gain * (1.0 - 0.9) * 0.1 / (2.0 * 0.7);
        let setup = Setup { learning_rate, ..Setup::default() };
        let found = spawn(TransportKind::Thread, 3, |comm| {
            let mut trainer = Trainer::new(&comm, algorithm.clone(), setup.clone(), &[vec![0.0f32; 100]])?;
            for _ in 0..steps {
                trainer.step(|_, x| pull(comm.rank(), 0, x))?;
            }
            Ok(trainer.parameters()?.remove(0))
        });
        furthest(&found.unwrap()[0], &optimum(3, 100))
    };
    // Ranks with different minima keep an error feedback moving.
    for (feedback, most) in [("difference", 1e-2), ("error", 3.0)] {
        let settled = distance(feedback, 1.5, 800);
        assert!(settled < most, "{feedback}: {settled}");
        let swung = distance(feedback, 30.0, 500);
        assert!(swung > 50.0, "{feedback}: {swung}");
    }
    let refused = Run { ranks: 2, ..Run::default() };
    let refused = refused.refused(|| registry::named("diloco(codec=top-k(10%))").unwrap(), |_| 1.0f32);
    assert!(refused.iter().all(|error| error.contains("choose error or difference feedback")), "{refused:?}");
}
