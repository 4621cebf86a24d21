//! Algorithms that exchange gradients or directions in each step: against their rules, step by step, and the bytes of
//! their headers. Each file is a module here.

mod adams;
mod bucket_sizes;
mod by_hand;
mod bytegrad;
mod compressed_allreduce;
mod demo;
mod dgc;
mod ef21;
mod loco;
mod powersgd;
mod qadam;
mod signsgd_vote;
mod topk_ef;
mod zero_one_adam;

use crate::replicas::{Run, blame_rank_1};
use hexagram_algorithms::logical::testing::spawn_hosts;
use hexagram_algorithms::testing::{Quadratic, Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, EngineOptions, registry};

/// Minimum of the function that [`converged`] trains.
const MINIMUM: f32 = 10.0 / 6.5;

/// Returns the replicas of four ranks on these hosts after some steps, each with its own parabola.
fn converged(
    hosts: &[usize],
    hierarchical: bool,
    algorithm: impl Into<AnyAlgorithm>,
    steps: i32,
    rate: impl Fn(i32) -> f64 + Sync,
) -> Vec<Vec<f32>> {
    let problem = Quadratic { a: vec![1.0, 3.0, 0.5, 2.0], b: vec![0.0, 1.0, -2.0, 4.0] };
    let algorithm = algorithm.into();
    let found = spawn_hosts(hosts, |comm| {
        let engine = EngineOptions { hierarchical, ..Setup::default().engine };
        let begin: Vec<f32> = (0..97).map(|at| at as f32 / 50.0 - 1.0).collect();
        let setup = Setup { engine, ..Setup::default() };
        let mut trainer = Trainer::new(&comm, algorithm.clone(), setup, &[begin])?;
        for step in 0..steps {
            trainer.engine().set_learning_rate(rate(step));
            trainer.step(|_, x| {
                let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                problem.gradient(comm.rank(), &x).iter().map(|g| *g as f32).collect()
            })?;
        }
        Ok(trainer.parameters()?.remove(0))
    });
    found.unwrap()
}

/// A rank that cannot encode its gradient ends the training, and every rank names it.
#[test]
fn a_gradient_that_is_not_a_number_ends_the_training_and_names_the_rank() {
    let gradient = |rank| if rank == 1 { f32::NAN } else { 1.0 };
    // A matrix: some algorithms send vectors uncompressed.
    let run = Run { ranks: 3, shape: vec![20, 30], ..Run::default() };
    for name in ["topk-ef", "powersgd(start=0)", "dgc(warm_up=0)", "demo(keep=4)", "ef21", "loco"] {
        blame_rank_1(&run.refused(|| registry::named(name).unwrap(), gradient));
    }
}
