//! One model that is trained with every algorithm in turn: it keeps learning, and replicas are as each algorithm
//! guarantees.

use super::warmed_up::sampled;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{GradientAllReduce, registry};
use std::sync::Arc;

const RANKS: usize = 4;
const STEPS: usize = 400;
const ELEMENTS: usize = 1000;
/// γ. Adam and related algorithms move at most a multiple of it per step, 4 in all. An element that dgc sends every
/// hundredth step, as all are equal, has accumulated a hundred gradients with tenfold momentum.
fn learning_rate(algorithm: &str) -> f64 {
    if algorithm == "dgc" { 0.001 } else { 0.01 }
}

/// Maximum share of the distance that may remain. In 400 steps sparse-loco sends 1/64 of the elements 13 times: a fifth
/// of them have moved.
fn left(algorithm: &str) -> f64 {
    if algorithm == "sparse-loco" { 0.9 } else { 0.5 }
}

/// The result of one algorithm on one rank.
struct Stage {
    name: &'static str,
    identical: bool,
    /// Immediately after the last step.
    replica: Vec<f32>,
    /// Mean distance from the target, before and after.
    distance: (f64, f64),
}

fn distance(x: &[f32], target: f32) -> f64 {
    x.iter().map(|x| f64::from((x - target).abs())).sum::<f64>() / x.len() as f64
}

/// Rank r has f(x) = (x − target − bᵣ)²/2 with Σ bᵣ = 0; every algorithm must move from one target to the other.
fn train(comm: &Communicator) -> Result<Vec<Stage>> {
    let initial = [vec![0.0f32; ELEMENTS - 200], vec![0.0; 200]];
    let mut trainer = Trainer::new(comm, Arc::new(GradientAllReduce), Setup::default(), &initial)?;
    let off = (comm.rank() as f32 - (RANKS - 1) as f32 / 2.0) * 0.02;
    let mut stages = Vec::new();
    // A switch keeps the optimizer.
    let all = sampled(registry::all())
        .into_iter()
        .filter(|algorithm| algorithm.optimizers().by_default().is_none());
    for (turn, algorithm) in all.enumerate() {
        let name = algorithm.name();
        let identical = algorithm.keeps_replicas_identical();
        let target = if turn % 2 == 0 { 1.0 } else { -1.0 };
        trainer.engine().switch(algorithm)?;
        trainer.engine().set_learning_rate(learning_rate(name));
        let before = distance(&trainer.parameters()?.concat(), target);
        for _ in 0..STEPS {
            trainer.step(|_, x| x.iter().map(|x| x - target - off).collect())?;
        }
        let replica = trainer.parameters()?.concat();
        trainer.engine().settle()?;
        let after = distance(&trainer.parameters()?.concat(), target);
        stages.push(Stage { name, identical, replica, distance: (before, after) });
    }
    Ok(stages)
}

#[test]
fn a_model_goes_on_learning_through_all_algorithms() {
    let ranks = spawn(TransportKind::Thread, RANKS, |comm| train(&comm)).unwrap();
    for (at, first) in ranks[0].iter().enumerate() {
        for stages in &ranks {
            let Stage { name, distance: (before, after), .. } = stages[at];
            assert!(
                after < left(name) * before,
                "{name} began {before} from the target and ended {after} from it"
            );
        }
        if first.identical {
            let same = ranks.iter().all(|stages| stages[at].replica == first.replica);
            assert!(same, "{} promises identical replicas", first.name);
        }
    }
    assert!(ranks[0].iter().any(|stage| stage.identical));
}
