//! signSGD with majority vote: the majority, ties, and known counter-examples.

use hexagram_algorithms::logical::TransportKind;
use hexagram_algorithms::logical::testing::{cases, spawn, spawn_hosts};
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::signsgd_vote::SignSgdVote;
use hexagram_algorithms::testing::{Quadratic, Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, EngineOptions, GradientAllReduce};
use std::sync::{Arc, Barrier};

/// The replica of every rank after `steps` steps with the gradient of rank r at x in step t.
fn train(
    ranks: usize,
    algorithm: impl Fn() -> AnyAlgorithm + Sync,
    (rate, steps): (f64, usize),
    begin: &[f32],
    gradient: impl Fn(usize, usize, &[f32]) -> Vec<f32> + Sync,
) -> Vec<Vec<f32>> {
    spawn(TransportKind::Thread, ranks, |comm| {
        let setup = Setup { learning_rate: rate, ..Setup::default() };
        let mut trainer = Trainer::new(&comm, algorithm(), setup, &[begin.to_vec()])?;
        for step in 0..steps {
            trainer.step(|_, x| gradient(comm.rank(), step, x))?;
        }
        Ok(trainer.parameters()?.remove(0))
    })
    .unwrap()
}

#[test]
fn most_votes_decide_and_ties_move_nothing_in_the_long_run() {
    let gradient = |rank: usize, step: usize, at: usize| -> i32 {
        match at % 7 {
            0 => 0,
            1 => i32::from(rank.is_multiple_of(2)) * 2 - 1,
            _ => ((at * 7 + rank * 31 + step * 13) % 101) as i32 - 50,
        }
    };
    for momentum in [0.0, 0.75] {
        for (transport, ranks) in cases(&[1, 2, 4, 5]) {
            let elements = 77;
            let steps = 6;
            let found = spawn(transport, ranks, |comm| {
                let setup = Setup { learning_rate: 0.5, ..Setup::default() };
                let algorithm = Arc::new(SignSgdVote { momentum });
                let mut trainer = Trainer::new(&comm, algorithm, setup, &[vec![0.0f32; elements]])?;
                for step in 0..steps {
                    let own = |at| gradient(comm.rank(), step, at) as f32;
                    trainer.step(|_, x| (0..x.len()).map(own).collect())?;
                }
                Ok(trainer.parameters()?.remove(0))
            });
            let mut expected = vec![0.0f32; elements];
            let mut m = vec![0.0f64; elements * ranks];
            for step in 0..steps {
                let tie = if step.is_multiple_of(2) { 1 } else { -1 };
                let sign = |x: f64| if x == 0.0 { tie } else { x.signum() as i32 };
                for (at, x) in expected.iter_mut().enumerate() {
                    let vote = |rank: usize| {
                        let m = &mut m[rank * elements + at];
                        *m = momentum * *m + (1.0 - momentum) * f64::from(gradient(rank, step, at));
                        sign(*m)
                    };
                    *x -= 0.5 * sign((0..ranks).map(vote).sum::<i32>().into()) as f32;
                }
            }
            assert!(expected.iter().step_by(7).all(|x| *x == 0.0), "zeros stay where they are");
            for found in found.unwrap() {
                assert_eq!(found, expected, "{ranks} ranks over {transport}, momentum {momentum}");
            }
        }
    }
}

#[test]
fn every_rank_has_its_vote_where_hosts_count_them() {
    // A majority of the hosts is not a majority of the ranks.
    for hosts in [&[0, 0, 0, 1, 2][..], &[0, 0, 1, 1]] {
        let replicas = |hierarchical| {
            let found = spawn_hosts(hosts, |comm| {
                let engine = EngineOptions { hierarchical, ..Setup::default().engine };
                let setup = Setup { engine, learning_rate: 0.01, ..Setup::default() };
                let mut trainer =
                    Trainer::new(&comm, Arc::new(SignSgdVote::default()), setup, &[vec![0.0f32; 97]])?;
                for step in 0..7 {
                    let of = |at: usize| ((at * 7 + comm.rank() * 31 + step * 13) % 101) as f32 - 50.0;
                    trainer.step(|_, x| (0..x.len()).map(of).collect())?;
                }
                Ok(trainer.parameters()?.remove(0))
            });
            found.unwrap()
        };
        let flat = replicas(false);
        assert!(flat.iter().all(|replica| *replica == flat[0]), "{hosts:?}");
        assert_eq!(replicas(true), flat, "{hosts:?}");
    }
}

#[test]
fn it_comes_as_near_to_the_minimum_as_its_step_is_long() {
    let problem = Quadratic { a: vec![1.0; 3], b: vec![0.9, 1.0, 1.1] };
    let given = |rank, _, x: &[f32]| {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        problem.gradient(rank, &x).iter().map(|g| *g as f32).collect()
    };
    let begin: Vec<f32> = (0..50).map(|at| at as f32 / 25.0).collect();
    let found = train(3, || SignSgdVote::default().into(), (0.01, 300), &begin, given);
    for replica in &found {
        assert_eq!(*replica, found[0]);
        assert!(replica.iter().all(|x| (x - 1.0).abs() < 0.2), "{replica:?}");
    }
}

/// Karimireddy et al. 2019, counter-example 1: f(x) = x/4 with gradients of 4 for one sample of four, and −1 for the
/// others. Every rank has one sample per step.
#[test]
fn it_walks_uphill_where_large_gradients_are_rare_and_feedback_does_not() {
    let given =
        |rank: usize, step: usize, _: &[f32]| vec![if (rank + step).is_multiple_of(4) { 4.0 } else { -1.0 }];
    let end = |algorithm: &(dyn Fn() -> AnyAlgorithm + Sync)| {
        train(4, algorithm, (0.001, 500), &[0.0], given)[0][0]
    };
    let by_vote = end(&|| SignSgdVote { momentum: 0.0 }.into());
    let by_mean = end(&|| GradientAllReduce.into());
    let by_one_bit = end(&|| QAdam { warmup: 10, ..QAdam::default() }.into());
    assert!((by_vote - 0.5).abs() < 1e-4, "{by_vote}");
    assert!((by_mean + 0.125).abs() < 1e-4, "{by_mean}");
    assert!(by_one_bit < -0.1, "{by_one_bit}");
}

/// Counter-example 2: f(x) = ½|x₁ + x₂| + |x₁ − x₂|; every subgradient has the signs of ±(1, −1). Counter-example 3:
/// f(x) = ⟨a₁, x⟩² + ⟨a₂, x⟩² with a = ±(1, −1) + ½(1, 1), one of the two per step, with the same property.
#[test]
fn it_stays_on_a_line_that_feedback_leaves() {
    let sign = |x: f32| if x < 0.0 { -1.0f32 } else { 1.0 };
    let second = |_: usize, _: usize, x: &[f32]| {
        let along = sign(x[0] + x[1]) / 2.0;
        let across = sign(x[0] - x[1]);
        vec![along + across, along - across]
    };
    let a = |step: usize| if step.is_multiple_of(2) { [1.5f32, -0.5] } else { [-0.5f32, 1.5] };
    let product = |a: [f32; 2], x: &[f32]| a[0] * x[0] + a[1] * x[1];
    let third = |_: usize, step: usize, x: &[f32]| {
        a(step).iter().map(|part| 2.0 * product(a(step), x) * part).collect::<Vec<f32>>()
    };
    let loss_of_third = |x: &[f32]| product(a(0), x).powi(2) + product(a(1), x).powi(2);
    let loss_of_second = |x: &[f32]| (x[0] + x[1]).abs() / 2.0 + (x[0] - x[1]).abs();
    let vote = || AnyAlgorithm::from(SignSgdVote { momentum: 0.0 });
    let one_bit = || AnyAlgorithm::from(QAdam { warmup: 2, ..QAdam::default() });
    // From (1, 1), where the first gradients of the second function are known.
    let found = train(3, vote, (0.01, 1000), &[1.0, 1.0], second);
    assert!(loss_of_second(&found[0]) > 0.99, "{:?}", found[0]);
    let found = train(3, one_bit, (0.01, 1000), &[1.0, 1.0], second);
    assert!(loss_of_second(&found[0]) < 0.2, "{:?}", found[0]);
    let found = train(3, vote, (0.01, 1000), &[1.0, 1.0], third);
    assert!(loss_of_third(&found[0]) > 1.99, "{:?}", found[0]);
    let found = train(3, one_bit, (0.01, 3000), &[1.0, 1.0], third);
    assert!(loss_of_third(&found[0]) < 1e-3, "{:?}", found[0]);
}

#[test]
fn gradients_without_a_sign_are_refused() {
    let begun = Barrier::new(2);
    let errors = spawn(TransportKind::Thread, 2, |comm| {
        let algorithm = Arc::new(SignSgdVote::default());
        let mut trainer = Trainer::new(&comm, algorithm, Setup::default(), &[vec![1.0f32; 9]])?;
        trainer.engine().initial().prepare()?;
        begun.wait();
        let bad = |rank, at| if rank == 1 && at == 4 { f32::NAN } else { 1.0 };
        Ok(trainer.step(|_, x| (0..x.len()).map(|at| bad(comm.rank(), at)).collect()).unwrap_err())
    });
    for error in errors.unwrap() {
        assert!(error.to_string().contains("NaN"), "{error}");
    }
}
