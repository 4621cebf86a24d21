//! One-bit Adam against Adam, and against its header step by step.

use super::adams::{Rule, assert_close, assert_is_adam, gradient, train, uneven};
use super::{MINIMUM, converged};
use hexagram_algorithms::Frozen;
use hexagram_algorithms::logical::codec::Sign;
use hexagram_algorithms::logical::encoding::{Encoding, Feedback};
use hexagram_algorithms::logical::testing::{Reference, cases, spawn};
use hexagram_algorithms::logical::{ReduceOp, TransportKind};
use hexagram_algorithms::optimizer::Moments;
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::testing::{Setup, Trainer};
use std::sync::Arc;

#[test]
fn its_warm_up_is_adam() {
    assert_is_adam(Arc::new(QAdam::default()));
}

/// The form of the paper, the default, and the one that bounds every step, with a D that differs between elements by a
/// factor of 50.
#[test]
fn its_steps_are_those_of_its_header() {
    let elements = 1203;
    let warmup = 3;
    let steps = 9;
    let block = 256;
    let given = uneven(warmup + 2);
    for (transport, ranks) in cases(&[1, 2, 3]) {
        for frozen in [Frozen::papers(), Frozen::default(), Frozen { clip: Some(1.5), ..Frozen::bounded() }] {
            let moments = Moments { beta1: 0.5, beta2: 0.75, ..Moments::default() };
            let algorithm = QAdam { warmup: warmup as u64, moments, frozen, block, ..QAdam::default() };
            let found = spawn(transport, ranks, |comm| {
                train(&comm, Arc::new(algorithm), Setup::default(), (elements, steps), &given)
            })
            .unwrap();
            let encoding = Encoding::new(Arc::new(Sign::in_blocks(block))).with_feedback(Feedback::TwoLevel);
            let mut reference = Reference::new(&encoding, ranks, elements, ReduceOp::Mean);
            let mut rule = Rule::new(elements, 0.5, 0.75, frozen);
            let mut x = vec![0.0; elements];
            for step in 0..steps {
                let g = |rank, at| f64::from(given(rank, step, at));
                if step < warmup {
                    let mean = |at| (0..ranks).map(|rank| g(rank, at)).sum::<f64>() / ranks as f64;
                    rule.exact(&(0..elements).map(mean).collect::<Vec<_>>());
                } else {
                    let own = |rank, at| 0.5 * rule.m[at] + 0.5 * rule.limited(at, g(rank, at));
                    let own = |rank, at| (rule.unit(at) * own(rank, at)) as f32;
                    let m =
                        reference.all_reduce_encoded(|rank, range| range.map(|at| own(rank, at)).collect());
                    rule.m = m.unwrap().iter().enumerate().map(|(at, m)| rule.decoded(at, *m)).collect();
                }
                // The warm-up is Adam itself, without a floor.
                let adams =
                    |at: usize| 1.0 / ((rule.v[at] / (1.0 - 0.75f64.powi(step as i32 + 1))).sqrt() + 1e-8);
                for (at, x) in x.iter_mut().enumerate() {
                    let d = if step < warmup { adams(at) } else { rule.d[at] };
                    *x -= 0.01 * d * rule.m[at] / (1.0 - 0.5f64.powi(step as i32 + 1));
                }
            }
            for found in &found {
                assert_close(found, &x, &format!("{ranks} ranks, over {transport}, {frozen:?}"));
            }
            assert!(found.iter().all(|replica| *replica == found[0]));
        }
    }
}

#[test]
fn its_step_does_not_grow_after_the_switch() {
    // For a constant gradient, the direction of Adam is its sign in every step.
    spawn(TransportKind::Thread, 2, |comm| {
        for algorithm in [QAdam::default(), QAdam::eight_bits()] {
            let steps = 1500;
            let sign = |at: usize| if at.is_multiple_of(3) { -1.0f32 } else { 1.0 };
            let algorithm = Arc::new(algorithm);
            let x = train(&comm, algorithm, Setup::default(), (6, steps), |_, _, at| 0.3 * sign(at))?;
            for (at, x) in x.iter().enumerate() {
                let expected = -0.01 * steps as f32 * sign(at);
                assert!((x - expected).abs() < 0.02, "{x} and not {expected}");
            }
        }
        Ok(())
    })
    .unwrap();
}

/// The largest step of an element after the warm-up, in units of γ, if elements get their first gradient then, and
/// gradients differ by a factor of 10⁷.
fn largest_step(algorithm: QAdam) -> f64 {
    let size = 64;
    let warmup = algorithm.warmup as usize;
    let largest = spawn(TransportKind::Thread, 2, |comm| {
        let rank = comm.rank();
        let begin = vec![vec![0.0f32; size]; 3];
        let setup = Setup { learning_rate: 0.01, ..Setup::default() };
        let mut trainer = Trainer::new(&comm, Arc::new(algorithm), setup, &begin)?;
        let mut last = begin;
        let mut largest = 0.0f64;
        for step in 0..warmup + 300 {
            let given = |tensor: usize, at: usize| match (tensor, at % 8) {
                // Never any gradient.
                (1, _) => 0.0,
                // Without gradients in the warm-up.
                (0, 0) | (2, _) if step < warmup => 0.0,
                (0, 1) => 0.0,
                (_, which) => gradient(rank, step, at) * 10.0f32.powi(-(which as i32)),
            };
            trainer.step(|tensor, x| (0..x.len()).map(|at| given(tensor, at)).collect())?;
            let now = trainer.parameters()?;
            for (now, last) in now.iter().flatten().zip(last.iter().flatten()) {
                largest = largest.max(f64::from((now - last).abs()) / 0.01);
            }
            last = now;
        }
        assert!(last[1].iter().chain(&last[2]).all(|x| *x == 0.0), "nothing is known of their variance");
        Ok(largest)
    });
    largest.unwrap().into_iter().fold(0.0, f64::max)
}

#[test]
fn steps_are_bounded_by_the_bounded_form_and_not_by_the_papers() {
    for algorithm in [QAdam::default(), QAdam::eight_bits()] {
        let bounded = largest_step(QAdam { frozen: Frozen::bounded(), ..algorithm });
        let papers = largest_step(QAdam { frozen: Frozen::papers(), ..algorithm });
        // The bound of Adam itself is 1/√(1 − β₂).
        assert!(bounded < 32.0, "{bounded}, {algorithm:?}");
        assert!(papers > 100.0, "{papers}, {algorithm:?}");
    }
}

#[test]
fn it_converges_and_replicas_are_identical_hierarchically_too() {
    let rate = |step: i32| 0.1 * 0.98f64.powi((step - 300).max(0));
    for (algorithm, hierarchical) in
        [(QAdam::default(), false), (QAdam::default(), true), (QAdam::eight_bits(), true)]
    {
        let found = converged(&[0, 0, 1, 1], hierarchical, algorithm, 600, rate);
        assert!(found.iter().all(|replica| *replica == found[0]));
        let near = found[0].iter().all(|x| (x - MINIMUM).abs() < 0.05);
        assert!(near, "{:?}, {algorithm:?}, hierarchical: {hierarchical}", found[0]);
    }
}
