//! Tries learning rates for each algorithm and task, and prints the table of lab/src/suite/defaults.rs: `cargo run --release
//! -p hexagram-lab --example tune`. With names of algorithms, only these are tuned.

use hexagram::Result;
use hexagram::algorithms::registry;
use hexagram::physical::stdout::print;
use hexagram::sampler::Partition;
use hexagram_lab::suite::Suite;
use hexagram_lab::{Training, train};
use std::sync::Arc;

/// Learning rates that are tried.
const RATES: [f64; 7] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0];

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let mut suite = Suite::whole(registry::all())?;
    suite.lessons.retain(|lesson| lesson.task.name() != "noisy-quadratics");
    for algorithm in &suite.algorithms {
        if !(names.is_empty() || names.iter().any(|name| name == algorithm.name())) {
            continue;
        }
        let mut best = Vec::new();
        for lesson in &suite.lessons {
            let loss = |rate: f64| {
                let training = Training {
                    algorithm: algorithm.clone(),
                    learning_rate: rate,
                    ranks: 8,
                    partition: Partition::Dirichlet { alpha: 1.0 },
                    seed: 1000,
                    steps: lesson.steps,
                    records: 1,
                    ..Training::of(Arc::clone(&lesson.task))
                };
                // A rate that an algorithm refuses, or diverges with, is not the best.
                let loss = train(&training).map_or(f64::INFINITY, |outcome| outcome.own.loss);
                if loss.is_nan() { f64::INFINITY } else { loss }
            };
            let losses = RATES.map(|rate| (loss(rate), rate));
            let least = losses.into_iter().min_by(|(one, _), (other, _)| one.total_cmp(other));
            best.push(least.map_or(0.1, |(_, rate)| rate));
        }
        let _ = print(&format!("    (\"{}\", {best:?}),", algorithm.name()));
    }
    Ok(())
}
