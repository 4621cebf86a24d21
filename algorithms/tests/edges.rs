//! What no training should have and some have: models with nothing in them, one rank, steps with a learning rate of 0.

use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Result, TransportKind};
use hexagram_algorithms::post_local_sgd::PostLocalSgd;
use hexagram_algorithms::powersgd::PowerSgd;
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::zero_one_adam::ZeroOneAdam;
use hexagram_algorithms::{AnyAlgorithm, registry};
use std::sync::Arc;

/// Trains a model of vectors of these lengths, step by step with these learning rates; every rank's parameters.
fn train(
    algorithm: &Arc<dyn AnyAlgorithm>,
    ranks: usize,
    lengths: &[usize],
    rates: &[f64],
) -> Result<Vec<Vec<Vec<f32>>>> {
    spawn(TransportKind::Thread, ranks, |comm| {
        let initial: Vec<Vec<f32>> = lengths.iter().map(|len| vec![0.5; *len]).collect();
        let mut trainer = Trainer::new(&comm, Arc::clone(algorithm), Setup::default(), &initial)?;
        for rate in rates {
            trainer.engine().set_learning_rate(*rate);
            trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f32).collect())?;
        }
        trainer.engine().settle()?;
        trainer.parameters()
    })
}

/// All algorithms, and those again whose warm-up is longer than these tests.
fn algorithms() -> Vec<Arc<dyn AnyAlgorithm>> {
    let mut all = registry::all();
    all.push(Arc::new(QAdam { warmup: 5, ..QAdam::default() }));
    all.push(Arc::new(ZeroOneAdam { freeze: 6, local_doubling: 4, ..ZeroOneAdam::default() }));
    all.push(Arc::new(PowerSgd { start: 5, ..PowerSgd::default() }));
    all.push(Arc::new(PostLocalSgd { start: 5, ..PostLocalSgd::default() }));
    all
}

/// Calls `case` with every algorithm, and says of which ones it failed.
fn all(case: impl Fn(&Arc<dyn AnyAlgorithm>) -> Result<Option<String>>) {
    let mut failed = Vec::new();
    for algorithm in algorithms() {
        match case(&algorithm) {
            Ok(None) => {}
            Ok(Some(why)) => failed.push(format!("{}: {why}", algorithm.name())),
            Err(error) => failed.push(format!("{}: {error}", algorithm.name())),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_model_may_have_nothing_in_it_or_next_to_nothing() {
    all(|algorithm| {
        for lengths in [&[][..], &[0], &[0, 3, 0], &[1]] {
            for ranks in [1, 2, 3] {
                let found = train(algorithm, ranks, lengths, &[0.01; 20])?;
                if found.iter().flatten().flatten().any(|x| !x.is_finite()) {
                    return Ok(Some(format!("{ranks} ranks, {lengths:?}: {found:?}")));
                }
            }
        }
        Ok(None)
    });
}

#[test]
fn steps_with_a_learning_rate_of_0_change_nothing() {
    all(|algorithm| {
        let found = train(algorithm, 3, &[5, 40], &[0.0; 20])?;
        let moved = found.iter().flatten().flatten().any(|x| *x != 0.5);
        Ok(moved.then(|| format!("{found:?}")))
    });
}

#[test]
fn a_learning_rate_that_falls_and_rises_does_no_harm() {
    for low in [0.0, 1e-9, 1e-30] {
        let rates: Vec<f64> = [0.01, low, 0.01, low].iter().flat_map(|rate| [*rate; 20]).collect();
        all(|algorithm| {
            let found = train(algorithm, 3, &[5, 40], &rates)?;
            let wild = found.iter().flatten().flatten().any(|x| !(-3.0..=3.0).contains(x));
            Ok(wild.then(|| format!("{low}: {found:?}")))
        });
    }
}
