//! Local SGD against its closed form, and against synchronous SGD.

use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::testing::{Quadratic, Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, GradientAllReduce};

/// The parameter of every rank after `steps` steps on f(x) = a(x − b)²/2.
fn train(algorithm: impl Fn() -> AnyAlgorithm + Sync, steps: usize) -> Vec<f64> {
    let problem = Quadratic { a: vec![1.0, 3.0, 0.5, 2.0], b: vec![0.0, 1.0, -2.0, 4.0] };
    let run = |comm: Communicator| {
        let mut trainer = Trainer::new(&comm, algorithm(), Setup::default(), &[vec![0.7]])?;
        for _ in 0..steps {
            trainer.step(|_, x| problem.gradient(comm.rank(), x))?;
        }
        Ok(trainer.parameters()?[0][0])
    };
    spawn(TransportKind::Thread, 4, run).unwrap()
}

#[test]
fn its_fixed_point_is_that_of_the_closed_form() {
    let expected = [(1, 1.538461538462), (2, 1.516198704104), (8, 1.342229528526), (32, 0.897403783346)];
    for (period, expected) in expected {
        for found in train(|| LocalSgd { period, ..LocalSgd::default() }.into(), 640) {
            assert!((found - expected).abs() < 1e-11, "H = {period}: {found} and not {expected}");
        }
    }
}

#[test]
fn a_period_of_one_is_synchronous_sgd() {
    let local = train(|| LocalSgd { period: 1, ..LocalSgd::default() }.into(), 50);
    let synchronous = train(|| GradientAllReduce.into(), 50);
    for (one, other) in local.iter().zip(&synchronous) {
        assert!((one - other).abs() < 1e-14, "{one} and not {other}");
    }
}
