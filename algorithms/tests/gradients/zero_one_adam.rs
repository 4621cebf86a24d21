//! 0/1 Adam against Adam, and against its header step by step.

use super::adams::{Rule, assert_close, assert_is_adam, gradient, train, uneven};
use super::{MINIMUM, converged};
use hexagram_algorithms::Frozen;
use hexagram_algorithms::logical::codec::Sign;
use hexagram_algorithms::logical::encoding::{Encoding, Feedback};
use hexagram_algorithms::logical::testing::{Reference, cases, spawn};
use hexagram_algorithms::logical::{ReduceOp, TransportKind};
use hexagram_algorithms::optimizer::Moments;
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::zero_one_adam::ZeroOneAdam;
use std::sync::Arc;

#[test]
fn with_a_variance_that_is_always_measured_it_is_adam() {
    assert_is_adam(Arc::new(ZeroOneAdam {
        variance_doubling: 1000,
        frozen: Frozen::papers(),
        ..ZeroOneAdam::default()
    }));
}

/// Exact steps, encoded ones, and local ones, one and then two at a time, with a D that differs between elements by a
/// factor of 50.
#[test]
fn its_steps_are_those_of_its_header() {
    let moments = Moments { beta1: 0.5, beta2: 0.75, ..Moments::default() };
    let rule = ZeroOneAdam {
        freeze: 4,
        variance_doubling: 1,
        local_doubling: 2,
        local_largest: 2,
        moments,
        block: 256,
        ..ZeroOneAdam::default()
    };
    for (transport, ranks) in cases(&[1, 2, 3]) {
        for frozen in [Frozen::papers(), Frozen::default(), Frozen { clip: Some(1.5), ..Frozen::bounded() }] {
            let algorithm = ZeroOneAdam { frozen, ..rule };
            let given = uneven(5);
            let found = spawn(transport, ranks, |comm| {
                train(&comm, Arc::new(algorithm), Setup::default(), (ELEMENTS, STEPS), &given)
            });
            let expected = by_hand(frozen, ranks, &given);
            for (found, expected) in found.unwrap().iter().zip(&expected) {
                assert_close(found, expected, &format!("{ranks} ranks, over {transport}, {frozen:?}"));
            }
        }
    }
}

const ELEMENTS: usize = 1203;
const STEPS: usize = 11;

/// Returns the replicas of the ranks: exact steps 1 and 3, encoded ones 2 and 4, and averages after 5, 6, 8 and 10.
fn by_hand(frozen: Frozen, ranks: usize, given: &impl Fn(usize, usize, usize) -> f32) -> Vec<Vec<f64>> {
    let encoding = Encoding::new(Arc::new(Sign::in_blocks(256))).with_feedback(Feedback::TwoLevel);
    let fresh = || Reference::new(&encoding, ranks, ELEMENTS, ReduceOp::Mean);
    let mut reference = fresh();
    let mut rule = Rule::new(ELEMENTS, 0.5, 0.75, frozen);
    let mut start = vec![0.0; ELEMENTS];
    let mut x = vec![start.clone(); ranks];
    let mut m = Vec::new();
    let mut moved = 0.0;
    for t in 1..=STEPS {
        let g = |rank, at| f64::from(given(rank, t - 1, at));
        if t > 4 {
            if t == 5 {
                reference = fresh();
                m = vec![rule.m.clone(); ranks];
                start.clone_from(&x[0]);
            }
            moved += 0.01 / (1.0 - 0.5f64.powi(t as i32));
            for rank in 0..ranks {
                for at in 0..ELEMENTS {
                    m[rank][at] = 0.5 * m[rank][at] + 0.5 * rule.limited(at, g(rank, at));
                    x[rank][at] -= 0.01 * rule.direction(t, at, m[rank][at]);
                }
            }
            if t == 5 || t % 2 == 0 {
                // The sum of γ m is (x₀ − xᵢ)/D.
                let way = |rank: usize, at: usize| match rule.d[at] {
                    0.0 => 0.0,
                    d => rule.unit(at) * (start[at] - x[rank][at]) / d,
                };
                let u = reference
                    .all_reduce_encoded(|rank, range| range.map(|at| way(rank, at) as f32).collect())
                    .unwrap();
                for at in 0..ELEMENTS {
                    let u = rule.decoded(at, u[at]);
                    start[at] -= rule.d[at] * u;
                    m.iter_mut().for_each(|m| m[at] = u / moved);
                }
                x.fill(start.clone());
                moved = 0.0;
            }
            continue;
        }
        if t % 2 == 1 {
            let mean = |at| (0..ranks).map(|rank| g(rank, at)).sum::<f64>() / ranks as f64;
            rule.exact(&(0..ELEMENTS).map(mean).collect::<Vec<_>>());
        } else {
            let own = |rank, at| (rule.unit(at) * rule.limited(at, g(rank, at))) as f32;
            let p =
                reference.all_reduce_encoded(|rank, range| range.map(|at| own(rank, at)).collect()).unwrap();
            let taken = |at: usize| 0.5 * rule.m[at] + 0.5 * rule.decoded(at, p[at]);
            rule.m = (0..ELEMENTS).map(taken).collect();
        }
        for at in 0..ELEMENTS {
            let direction = rule.direction(t, at, rule.m[at]);
            x.iter_mut().for_each(|x| x[at] -= 0.01 * direction);
        }
    }
    x
}

#[test]
fn it_converges_and_replicas_meet_hierarchically_too() {
    let rate = |step: i32| 0.05 * 0.99f64.powi((step - 400).max(0));
    for hierarchical in [false, true] {
        let found = converged(&[0, 0, 1, 1], hierarchical, ZeroOneAdam::default(), 1000, rate);
        // Steps 401 to 600 come in pairs, all later ones in groups of four.
        assert!(found.iter().all(|replica| *replica == found[0]));
        let mean = found[0].iter().sum::<f32>() / found[0].len() as f32;
        assert!((mean - MINIMUM).abs() < 0.01, "{mean}, hierarchical: {hierarchical}");
        // An error from a large γ is corrected when γ is small.
        assert!(found[0].iter().all(|x| (x - mean).abs() < 0.25), "{:?}", found[0]);
    }
}

/// Returns how far the elements of a tensor move that never have a gradient, if others of it have one; γ is .1.
fn way_without_gradients(frozen: Frozen) -> f32 {
    let largest = spawn(TransportKind::Thread, 2, |comm| {
        let algorithm = ZeroOneAdam { freeze: 30, local_doubling: 10, frozen, ..ZeroOneAdam::default() };
        let begin = [vec![0.5f32; 40], vec![-0.5; 40]];
        let mut trainer = Trainer::new(&comm, algorithm, Setup::default(), &begin)?;
        for step in 0..100 {
            let silent = |tensor, at: usize| tensor == 1 || at < 4;
            let given = |tensor, at| if silent(tensor, at) { 0.0 } else { gradient(comm.rank(), step, at) };
            trainer.step(|tensor, x| (0..x.len()).map(|at| given(tensor, at)).collect())?;
        }
        let x = trainer.parameters()?;
        assert_eq!(x[1], begin[1], "nothing is known of its variance");
        assert_ne!(x[0], begin[0]);
        Ok(x[0][..4].iter().fold(0.0, |largest: f32, x| largest.max((x - 0.5).abs())))
    });
    largest.unwrap().into_iter().fold(0.0, f32::max)
}

#[test]
fn what_has_no_gradients_stays_where_it_is_or_near() {
    // D is 0 there.
    assert_eq!(way_without_gradients(Frozen::papers()), 0.0);
    // The excess of one bit is corrected, up to its scale.
    let scaled = way_without_gradients(Frozen::bounded());
    let unscaled = way_without_gradients(Frozen::default());
    assert!(scaled < 2.0 && unscaled < 20.0, "{scaled} and {unscaled}");
}
