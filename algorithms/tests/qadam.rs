//! One-bit Adam against Adam, against what its header says step by step, and against the bytes in it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod adams;

use adams::{gradient, train};
use hexagram_algorithms::logical::codec::Sign;
use hexagram_algorithms::logical::encoding::{Encoding, Feedback};
use hexagram_algorithms::logical::testing::{Reference, cases, spawn, spawn_hosts};
use hexagram_algorithms::logical::{ReduceOp, TransportKind};
use hexagram_algorithms::optimizer::Moments;
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::testing::{Quadratic, Setup, Trainer, payload_per_step};
use hexagram_algorithms::{Adam, EngineOptions, GradientAllReduce};
use std::sync::{Arc, Barrier};

#[test]
fn its_warm_up_is_adam() {
    spawn(TransportKind::Thread, 3, |comm| {
        let adam = Setup { optimizer: Arc::new(Adam::default()), ..Setup::default() };
        let size = (1000, 50);
        let ours = train(&comm, Arc::new(QAdam::default()), Setup::default(), size, gradient)?;
        let adams = train(&comm, Arc::new(GradientAllReduce), adam, size, gradient)?;
        for (ours, adams) in ours.iter().zip(&adams) {
            assert!((ours - adams).abs() < 1e-6, "{ours} and not {adams}");
        }
        Ok(())
    })
    .unwrap();
}

/// Every step after the switch, the first of them too, with a warm-up of which D is exactly 2, and the clip 1.
#[test]
fn its_steps_after_the_switch_are_those_of_its_header_bit_for_bit() {
    let elements = 3001;
    let steps = 12;
    let block = 512;
    let moments = Moments { beta1: 0.5, beta2: 0.0, ..Moments::default() };
    let given = |rank: usize, step: usize, at: usize| match step {
        0 => (at % 2) as f32 - 0.5,
        _ => gradient(rank, step, at),
    };
    for (transport, ranks) in cases(&[1, 2, 3]) {
        let found = spawn(transport, ranks, |comm| {
            let algorithm = Arc::new(QAdam { warmup: 1, moments, block, ..QAdam::default() });
            train(&comm, algorithm, Setup::default(), (elements, steps), given)
        })
        .unwrap();
        let encoding = Encoding::new(Arc::new(Sign::in_blocks(block))).with_feedback(Feedback::TwoLevel);
        let mut reference = Reference::new(&encoding, ranks, elements, ReduceOp::Mean);
        let first = |at: usize| given(0, 0, at);
        // m = g/2 and √v̂ = ½, so that the direction is 2 g.
        let mut x: Vec<f32> = (0..elements).map(|at| -(0.01f64 as f32) * 2.0 * first(at)).collect();
        let mut z: Vec<f32> = (0..elements).map(first).collect();
        for step in 1..steps {
            let own = |rank, at: usize| 0.5 * z[at] + 0.5 * (2.0 * given(rank, step, at)).clamp(-1.0, 1.0);
            z = reference.all_reduce_encoded(|rank, range| range.map(|at| own(rank, at)).collect()).unwrap();
            let unbias = (1.0 / (1.0 - 0.5f64.powi(step as i32 + 1))) as f32;
            x.iter_mut().zip(&z).for_each(|(x, z)| *x -= 0.01 * (unbias * z));
        }
        for (rank, found) in found.iter().enumerate() {
            assert!(*found == x, "rank {rank} of {ranks}, over {transport}");
        }
    }
}

#[test]
fn its_step_does_not_grow_after_the_switch() {
    // Of a gradient that never changes, Adam's direction is its sign in every step.
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

/// Elements without variance, and elements that get their first gradient after the switch.
#[test]
fn elements_without_variance_do_not_blow_up() {
    spawn(TransportKind::Thread, 2, |comm| {
        for algorithm in [QAdam::default(), QAdam::eight_bits()] {
            let warmup = algorithm.warmup as usize;
            let size = 64;
            let rank = comm.rank();
            let begin = vec![vec![0.0f32; size]; 3];
            let setup = Setup { learning_rate: 0.01, ..Setup::default() };
            let mut trainer = Trainer::new(&comm, Arc::new(algorithm), setup, &begin)?;
            let mut last = begin;
            for step in 0..warmup + 300 {
                let given = |tensor: usize, at: usize| match (tensor, at % 8) {
                    // Without any gradient at all, ever.
                    (1, _) => 0.0,
                    // Without gradients in the warm-up.
                    (0, 0) | (2, _) if step < warmup => 0.0,
                    (0, 1) => 0.0,
                    (_, which) => gradient(rank, step, at) * 10.0f32.powi(-(which as i32)),
                };
                trainer.step(|tensor, x| (0..x.len()).map(|at| given(tensor, at)).collect())?;
                let now = trainer.parameters()?;
                for (at, (now, last)) in now.iter().flatten().zip(last.iter().flatten()).enumerate() {
                    // Adam's own bound where gradients have come, 1/√(1 − β₂); the others of the block hardly notice.
                    let largest = if at < size && at.is_multiple_of(8) { 32.0 } else { 5.0 };
                    assert!((now - last).abs() < 0.01 * largest, "step {step}: from {last} to {now}");
                }
                last = now;
            }
            assert!(last[1].iter().chain(&last[2]).all(|x| *x == 0.0), "nothing is known of their variance");
            let silent = last[0].iter().skip(1).step_by(8);
            assert!(silent.clone().all(|x| x.abs() < 0.1), "{:?}", silent.collect::<Vec<_>>());
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn it_converges_and_replicas_are_identical_hierarchically_too() {
    let problem = Quadratic { a: vec![1.0, 3.0, 0.5, 2.0], b: vec![0.0, 1.0, -2.0, 4.0] };
    for (algorithm, hierarchical) in
        [(QAdam::default(), false), (QAdam::default(), true), (QAdam::eight_bits(), true)]
    {
        let found = spawn_hosts(&[0, 0, 1, 1], |comm| {
            let engine = EngineOptions { hierarchical, ..Setup::default().engine };
            let setup = Setup { engine, ..Setup::default() };
            let begin: Vec<f32> = (0..97).map(|at| at as f32 / 50.0 - 1.0).collect();
            let mut trainer = Trainer::new(&comm, Arc::new(algorithm), setup, &[begin])?;
            for step in 0..600i32 {
                trainer.engine().set_learning_rate(0.1 * 0.98f64.powi((step - 300).max(0)));
                trainer.step(|_, x| {
                    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                    problem.gradient(comm.rank(), &x).iter().map(|g| *g as f32).collect()
                })?;
            }
            Ok(trainer.parameters()?.remove(0))
        })
        .unwrap();
        assert!(found.iter().all(|replica| *replica == found[0]));
        for x in &found[0] {
            assert!((x - 10.0 / 6.5).abs() < 0.05, "{x}, {algorithm:?}, hierarchical: {hierarchical}");
        }
    }
}

#[test]
fn the_bytes_are_those_of_its_header() {
    let warmup = 2;
    let steps = 6;
    let elements = 32768.0;
    let block = 2048.0;
    let sent = 2.0 * 3.0 / 4.0 * elements;
    let both = [(QAdam::default(), 1.0 / 8.0 + 4.0 / block), (QAdam::eight_bits(), 1.0 + 8.0 / block)];
    for (algorithm, bytes) in both {
        let expected = sent * (warmup as f64 * 4.0 + (steps - warmup) as f64 * bytes) / steps as f64;
        let algorithm = QAdam { warmup: warmup as u64, ..algorithm };
        let found = payload_per_step(4, 32768, steps, || Arc::new(algorithm)).unwrap();
        assert!((found - expected).abs() < 1e-9, "{found} and not {expected}");
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let begun = Barrier::new(2);
    let moments = Moments { beta1: f64::NAN, ..Moments::default() };
    for algorithm in [
        QAdam { warmup: 0, ..QAdam::default() },
        QAdam { block: 0, ..QAdam::eight_bits() },
        QAdam { moments, ..QAdam::default() },
    ] {
        spawn(TransportKind::Thread, 2, |comm| {
            let setup = Setup::default();
            let mut trainer = Trainer::new(&comm, Arc::new(algorithm), setup, &[vec![1.0f32; 3]])?;
            begun.wait();
            trainer.engine().initial().prepare().unwrap_err();
            Ok(())
        })
        .unwrap();
    }
}
