//! 0/1 Adam against Adam, against what its header says step by step, and against the bytes in it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod adams;

use adams::{gradient, train};
use hexagram_algorithms::logical::codec::Sign;
use hexagram_algorithms::logical::encoding::{Encoding, Feedback};
use hexagram_algorithms::logical::testing::{Reference, cases, spawn, spawn_hosts};
use hexagram_algorithms::logical::{ReduceOp, TransportKind};
use hexagram_algorithms::optimizer::Moments;
use hexagram_algorithms::testing::{Quadratic, Setup, Trainer, payload_per_step};
use hexagram_algorithms::zero_one_adam::ZeroOneAdam;
use hexagram_algorithms::{Adam, EngineOptions, GradientAllReduce};
use std::sync::{Arc, Barrier};

#[test]
fn with_a_variance_that_is_always_measured_it_is_adam() {
    spawn(TransportKind::Thread, 3, |comm| {
        let algorithm = Arc::new(ZeroOneAdam { variance_doubling: 1000, ..ZeroOneAdam::default() });
        let adam = Setup { optimizer: Arc::new(Adam::default()), ..Setup::default() };
        let size = (1000, 50);
        let ours = train(&comm, algorithm, Setup::default(), size, gradient)?;
        let adams = train(&comm, Arc::new(GradientAllReduce), adam, size, gradient)?;
        for (ours, adams) in ours.iter().zip(&adams) {
            assert!((ours - adams).abs() < 1e-6, "{ours} and not {adams}");
        }
        Ok(())
    })
    .unwrap();
}

/// One exact step, of which D is exactly 2 and the clip 1, an encoded one, and then local ones, two at a time.
#[test]
fn its_steps_are_those_of_its_header_bit_for_bit() {
    let elements = 3001;
    let steps = 9;
    let block = 512;
    let algorithm = ZeroOneAdam {
        freeze: 2,
        variance_doubling: 1,
        local_doubling: 1,
        local_largest: 2,
        moments: Moments { beta1: 0.5, beta2: 0.0, ..Moments::default() },
        block,
    };
    let given = |rank: usize, step: usize, at: usize| match step {
        0 => (at % 2) as f32 - 0.5,
        _ => gradient(rank, step, at),
    };
    let clipped = |rank, step, at| (2.0 * given(rank, step, at)).clamp(-1.0, 1.0);
    let unbias = |step: usize| (1.0 / (1.0 - 0.5f64.powi(step as i32 + 1))) as f32;
    for (transport, ranks) in cases(&[1, 2, 3]) {
        let found = spawn(transport, ranks, |comm| {
            train(&comm, Arc::new(algorithm), Setup::default(), (elements, steps), given)
        })
        .unwrap();
        let encoding = Encoding::new(Arc::new(Sign::in_blocks(block))).with_feedback(Feedback::TwoLevel);
        let fresh = || Reference::new(&encoding, ranks, elements, ReduceOp::Mean);
        let all = 0..elements;
        // Step 0: m = g/2 and √v̂ = ½, so that the direction is 2 g. Step 1: in one bit.
        let mut x0: Vec<f32> = all.clone().map(|at| -(0.01 * (2.0 * given(0, 0, at)))).collect();
        let p = fresh().all_reduce_encoded(|rank, range| range.map(|at| clipped(rank, 1, at)).collect());
        let m: Vec<f32> =
            p.unwrap().iter().zip(all).map(|(p, at)| 0.25 * given(0, 0, at) + 0.5 * p / 2.0).collect();
        x0.iter_mut().zip(&m).for_each(|(x, m)| *x -= 0.01 * (unbias(1) * 2.0 * m));
        // Steps from 2 on: this rank's own, until all go where the mean leads.
        let mut reference = fresh();
        let mut z: Vec<Vec<f32>> = vec![m.iter().map(|m| 2.0 * m).collect(); ranks];
        let mut x = vec![x0.clone(); ranks];
        let mut moved = 0.0;
        for step in 2..steps {
            moved += 0.01 * f64::from(unbias(step));
            for (rank, (x, z)) in x.iter_mut().zip(&mut z).enumerate() {
                for (at, (x, z)) in x.iter_mut().zip(z).enumerate() {
                    *z = 0.5 * *z + 0.5 * clipped(rank, step, at);
                    *x -= 0.01 * (unbias(step) * *z);
                }
            }
            if step == 2 || step % 2 == 0 {
                let way = |rank: usize, at: usize| x0[at] - x[rank][at];
                let u = reference
                    .all_reduce_encoded(|rank, range| range.map(|at| way(rank, at)).collect())
                    .unwrap();
                x0.iter_mut().zip(&u).for_each(|(x, u)| *x -= u);
                x.fill(x0.clone());
                z.fill(u.iter().map(|u| (f64::from(*u) * (1.0 / moved)) as f32).collect());
                moved = 0.0;
            }
        }
        for (rank, (found, x)) in found.iter().zip(&x).enumerate() {
            assert!(found == x, "rank {rank} of {ranks}, over {transport}");
        }
    }
}

#[test]
fn it_converges_and_replicas_meet_hierarchically_too() {
    let problem = Quadratic { a: vec![1.0, 3.0, 0.5, 2.0], b: vec![0.0, 1.0, -2.0, 4.0] };
    for hierarchical in [false, true] {
        let found = spawn_hosts(&[0, 0, 1, 1], |comm| {
            let engine = EngineOptions { hierarchical, ..Setup::default().engine };
            let setup = Setup { engine, ..Setup::default() };
            let begin: Vec<f32> = (0..97).map(|at| at as f32 / 50.0 - 1.0).collect();
            let mut trainer = Trainer::new(&comm, Arc::new(ZeroOneAdam::default()), setup, &[begin])?;
            for step in 0..1000i32 {
                trainer.engine().set_learning_rate(0.05 * 0.99f64.powi((step - 400).max(0)));
                trainer.step(|_, x| {
                    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                    problem.gradient(comm.rank(), &x).iter().map(|g| *g as f32).collect()
                })?;
            }
            Ok(trainer.parameters()?.remove(0))
        })
        .unwrap();
        // Steps 401 to 600 come in twos, all later ones in fours.
        assert!(found.iter().all(|replica| *replica == found[0]));
        let mean = found[0].iter().sum::<f32>() / found[0].len() as f32;
        assert!((mean - 10.0 / 6.5).abs() < 0.01, "{mean}, hierarchical: {hierarchical}");
        // What was lost when γ was large is said when it is small.
        assert!(found[0].iter().all(|x| (x - mean).abs() < 0.25), "{:?}", found[0]);
    }
}

#[test]
fn what_has_no_gradients_stays_where_it_is_or_near() {
    spawn(TransportKind::Thread, 2, |comm| {
        let algorithm = Arc::new(ZeroOneAdam { freeze: 30, local_doubling: 10, ..ZeroOneAdam::default() });
        let begin = [vec![0.5f32; 40], vec![-0.5; 40]];
        let mut trainer = Trainer::new(&comm, algorithm, Setup::default(), &begin)?;
        for step in 0..100 {
            let silent = |tensor, at: usize| tensor == 1 || at < 4;
            let given = |tensor, at| if silent(tensor, at) { 0.0 } else { gradient(comm.rank(), step, at) };
            trainer.step(|tensor, x| (0..x.len()).map(|at| given(tensor, at)).collect())?;
        }
        assert_eq!(trainer.parameters()?[1], begin[1]);
        assert_ne!(trainer.parameters()?[0], begin[0]);
        // γ is .1, and what one bit says too much is taken back.
        assert!(
            trainer.parameters()?[0][..4].iter().all(|x| (x - 0.5).abs() < 2.0),
            "{:?}",
            trainer.parameters()
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_bytes_are_those_of_its_header() {
    let algorithm = ZeroOneAdam {
        freeze: 4,
        variance_doubling: 1,
        local_doubling: 2,
        local_largest: 2,
        ..ZeroOneAdam::default()
    };
    let sent = 2.0 * 3.0 / 4.0 * 32768.0;
    let full = sent * 4.0;
    let one_bit = sent * (1.0 / 8.0 + 4.0 / 2048.0);
    // Steps 1 and 3 update v, 2 and 4 do not, 5 and 6 are sent at once, 8 and 10 with the one before.
    let expected = (2.0 * full + 6.0 * one_bit) / 10.0;
    let found = payload_per_step(4, 32768, 10, || Arc::new(algorithm)).unwrap();
    assert!((found - expected).abs() < 1e-9, "{found} and not {expected}");
}

#[test]
fn options_out_of_range_are_refused() {
    let begun = Barrier::new(2);
    let good = ZeroOneAdam::default();
    for bad in [
        ZeroOneAdam { freeze: 0, ..good },
        ZeroOneAdam { variance_doubling: 0, ..good },
        ZeroOneAdam { local_doubling: 0, ..good },
        ZeroOneAdam { local_largest: 0, ..good },
        ZeroOneAdam { block: 0, ..good },
        ZeroOneAdam { moments: Moments { floor: -1.0, ..good.moments }, ..good },
    ] {
        spawn(TransportKind::Thread, 2, |comm| {
            let mut trainer = Trainer::new(&comm, Arc::new(bad), Setup::default(), &[vec![1.0f32; 3]])?;
            begun.wait();
            trainer.engine().initial().prepare().unwrap_err();
            Ok(())
        })
        .unwrap();
    }
}
