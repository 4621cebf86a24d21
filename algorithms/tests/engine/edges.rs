//! Edge cases: empty models, one rank, and steps with a learning rate of 0.

use super::warmed_up::{algorithms, sampled};
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer, fitting};
use hexagram_algorithms::{AnyAlgorithm, Autotune, EngineOptions, LossScale, Mode, Order, Sgd};
use std::sync::Arc;

/// Returns the usual setup, except for the optimizer if the algorithm names one.
fn setup(algorithm: &AnyAlgorithm) -> Setup {
    let usual = Setup::default();
    Setup { optimizer: fitting(algorithm, usual.optimizer.clone()), ..usual }
}

/// Trains a model of vectors of these lengths, with one learning rate per step; returns the parameters of every rank.
fn train(
    algorithm: &AnyAlgorithm,
    ranks: usize,
    lengths: &[usize],
    rates: &[f64],
) -> Result<Vec<Vec<Vec<f32>>>> {
    spawn(TransportKind::Thread, ranks, |comm| {
        let initial: Vec<Vec<f32>> = lengths.iter().map(|len| vec![0.5; *len]).collect();
        let mut trainer = Trainer::new(&comm, algorithm.clone(), setup(algorithm), &initial)?;
        for rate in rates {
            trainer.engine().set_learning_rate(*rate);
            trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f32).collect())?;
        }
        trainer.engine().settle()?;
        trainer.parameters()
    })
}

/// Calls `case` with every algorithm, and reports those for which it failed.
fn all(case: impl Fn(&AnyAlgorithm) -> Result<Option<String>>) {
    let mut failed = Vec::new();
    for algorithm in sampled(algorithms()) {
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

#[test]
fn whatever_the_engine_gives_works_on_next_to_nothing_too() {
    let autotune = Autotune { warm_up: 2, steps: 1, bucket_bytes: vec![4, 8, 64], ..Autotune::default() };
    let options = EngineOptions {
        first_bucket_bytes: 4,
        bucket_bytes: 4,
        clip_norm: Some(1.0),
        loss_scale: Some(LossScale::default()),
        autotune: Some(autotune),
        uneven: true,
        ..EngineOptions::default()
    };
    all(|algorithm| {
        for lengths in [&[][..], &[0], &[0, 3, 0], &[1]] {
            spawn(TransportKind::Thread, 2, |comm| {
                let optimizer = fitting(algorithm, Arc::new(Sgd { momentum: 0.5, ..Sgd::default() }));
                let setup = Setup { learning_rate: 0.01, optimizer, engine: options.clone() };
                let initial: Vec<Vec<f32>> = lengths.iter().map(|len| vec![0.5; *len]).collect();
                let mut trainer = Trainer::new(&comm, algorithm.clone(), setup, &initial)?;
                trainer.engine().initial().broadcast_state(&mut [])?;
                trainer.engine().trace().begin()?;
                for step in 0..12 {
                    trainer.engine().synchronize_buffers(&mut [])?;
                    trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f32).collect())?;
                    if step == 5 {
                        let saved = trainer.engine().checkpoint().save()?;
                        trainer.engine().checkpoint().load(saved)?;
                    }
                }
                trainer.engine().trace().collect()?;
                trainer.engine().uneven().join()?;
                trainer.engine().average()
            })?;
        }
        Ok(None)
    });
}

/// Trains with steps of one pass, or of three with the same sum; returns the parameters of every rank.
fn in_passes(
    algorithm: &AnyAlgorithm,
    engine: &EngineOptions,
    shares: &'static [f32],
) -> Result<Vec<Vec<Vec<f32>>>> {
    spawn(TransportKind::Thread, 4, |comm| {
        let setup = Setup { learning_rate: 0.01, engine: engine.clone(), ..setup(algorithm) };
        let initial = [vec![0.5; 70], vec![-0.25; 9], vec![1.0; 30]];
        let mut trainer = Trainer::new(&comm, algorithm.clone(), setup, &initial)?;
        for _ in 0..20 {
            let x = trainer.parameters()?;
            let engine = trainer.engine();
            for (pass, share) in shares.iter().enumerate() {
                let last = pass + 1 == shares.len();
                engine.forward()?;
                engine.begin(if last { Mode::Synchronize } else { Mode::Accumulate })?;
                for (index, x) in x.iter().enumerate().rev() {
                    let gradient: Vec<f32> = x.iter().map(|x| share * (x - comm.rank() as f32)).collect();
                    engine.hooks().ready_slice(index, &gradient)?;
                }
                engine.finish()?;
            }
            engine.step()?;
        }
        trainer.engine().settle()?;
        trainer.parameters()
    })
}

#[test]
fn neither_accumulation_nor_streams_nor_the_order_of_calls_change_what_is_learnt() {
    let options = |order, streams| EngineOptions {
        order,
        streams,
        first_bucket_bytes: 64,
        bucket_bytes: 64,
        ..EngineOptions::default()
    };
    all(|algorithm| {
        if !algorithm.trigram().synchronous {
            return Ok(None);
        }
        for order in [Order::Listed, Order::Observed] {
            let expected = in_passes(algorithm, &options(order, usize::MAX), &[1.0])?;
            for streams in [1, 2] {
                let found = in_passes(algorithm, &options(order, streams), &[0.25, 0.25, 0.5])?;
                if found != expected {
                    return Ok(Some(format!("{order:?}, {streams} streams")));
                }
            }
        }
        Ok(None)
    });
}

#[test]
fn a_pass_that_overflows_leaves_nothing_behind() {
    let run = |algorithm: &AnyAlgorithm, bad: Option<usize>| {
        spawn(TransportKind::Thread, 4, |comm| {
            let loss_scale = Some(LossScale { initial: 1024.0, ..LossScale::default() });
            let setup = Setup {
                learning_rate: 0.01,
                engine: EngineOptions { loss_scale, ..EngineOptions::default() },
                ..setup(algorithm)
            };
            let mut trainer =
                Trainer::new(&comm, algorithm.clone(), setup, &[vec![0.5f32; 70], vec![1.0; 30]])?;
            for pass in 0..20 + usize::from(bad.is_some()) {
                let scale = trainer.engine().loss_scaling().scale() as f32;
                let spoilt = Some(pass) == bad && comm.rank() == 1;
                let scale = if spoilt { f32::INFINITY } else { scale };
                trainer.step(|_, x| x.iter().map(|x| scale * (x - comm.rank() as f32 - 0.3)).collect())?;
            }
            trainer.engine().settle()?;
            trainer.parameters()
        })
    };
    all(|algorithm| {
        if !algorithm.trigram().synchronous {
            return run(algorithm, Some(3)).map(|_| None);
        }
        let expected = run(algorithm, None)?;
        for bad in [0, 7] {
            if run(algorithm, Some(bad))? != expected {
                return Ok(Some(format!("pass {bad}")));
            }
        }
        Ok(None)
    });
}
