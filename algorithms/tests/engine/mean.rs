//! The mean of the replicas during a training: its values, the distance from it, and that its evaluation changes
//! nothing.

use super::warmed_up::sampled;
use hexagram_algorithms::logical::testing::{cases, spawn};
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer, fitting};
use hexagram_algorithms::{AnyAlgorithm, GradientAllReduce, Record, Sgd, registry};
use std::sync::Arc;

const ELEMENTS: usize = 37;

fn trainer(comm: &Communicator, algorithm: AnyAlgorithm) -> Result<Trainer<f32>> {
    // Not every algorithm supports momentum.
    let momentum = if algorithm.name() == "local-sgd" { 0.9 } else { 0.0 };
    let optimizer = fitting(&algorithm, Arc::new(Sgd { momentum, ..Sgd::default() }));
    let setup = Setup { optimizer, learning_rate: 0.05, ..Setup::default() };
    let initial: Vec<f32> = (0..ELEMENTS).map(|at| at as f32 / 8.0).collect();
    Trainer::new(comm, algorithm, setup, &[initial.clone(), initial])
}

fn step(comm: &Communicator, trainer: &mut Trainer<f32>) -> Result<()> {
    trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f32).collect())
}

/// Returns every tensor of a checkpoint as its bytes.
fn state(record: &Record) -> Vec<(String, Vec<u8>)> {
    let bytes = |values: &hexagram_algorithms::logical::Buffer| {
        values.read_all().unwrap().bytes_on_host().unwrap().into_owned()
    };
    record.tensors().map(|(name, saved)| (name.to_owned(), bytes(&saved.values))).collect()
}

/// Trains, and evaluates the mean after every step if `looks`.
fn trained(name: &'static str, looks: bool) -> Vec<Vec<(String, Vec<u8>)>> {
    spawn(TransportKind::Thread, 3, |comm| {
        let mut trainer = trainer(&comm, registry::named(name)?)?;
        for _ in 0..7 {
            step(&comm, &mut trainer)?;
            if looks {
                trainer.engine().with_mean(|_| ())?;
            }
        }
        Ok(state(&trainer.engine().checkpoint().save()?))
    })
    .unwrap()
}

#[test]
fn looking_at_the_mean_changes_nothing_of_synchronous_algorithms() {
    for algorithm in sampled(registry::all()).iter().filter(|algorithm| algorithm.trigram().synchronous) {
        let name = algorithm.name();
        assert!(trained(name, true) == trained(name, false), "{name}");
    }
}

#[test]
fn the_mean_and_the_distance_from_it_are_those_of_the_replicas() {
    for (transport, ranks) in cases(&[1, 2, 5]) {
        spawn(transport, ranks, |comm| {
            let mut trainer = trainer(&comm, registry::named("local-sgd")?)?;
            step(&comm, &mut trainer)?;
            step(&comm, &mut trainer)?;
            let own: Vec<f32> = trainer.parameters()?.concat();
            let mut all = vec![0.0f32; own.len() * comm.size()];
            comm.blocking().all_gather(&own, &mut all)?;
            let replicas: Vec<&[f32]> = all.chunks(own.len()).collect();
            let n = ranks as f64;
            let mean: Vec<f64> =
                (0..own.len()).map(|at| replicas.iter().map(|x| f64::from(x[at])).sum::<f64>() / n).collect();
            let apart = replicas.iter().flat_map(|x| x.iter().zip(&mean));
            let squares: f64 = apart.map(|(x, mean)| (f64::from(*x) - mean).powi(2)).sum();
            let found = trainer.engine().with_mean(|engine| {
                [engine.values::<f32>(0).unwrap(), engine.values::<f32>(1).unwrap()].concat()
            })?;
            for (found, mean) in found.result.iter().zip(&mean) {
                assert!(
                    (f64::from(*found) - mean).abs() < 1e-6,
                    "{transport} × {ranks}: {found}, not {mean}"
                );
            }
            let expected = (squares / n).sqrt();
            let distance = found.consensus_distance;
            assert!((distance - expected).abs() < 1e-5, "{transport} × {ranks}: {distance}, not {expected}");
            assert_eq!(distance > 0.1, ranks > 1);
            assert_eq!(trainer.parameters()?.concat(), own);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{transport} × {ranks}: {error}"));
    }
}

#[test]
fn an_asynchronous_algorithm_is_put_back_to_what_settling_leaves() {
    for name in ["ssp", "async-model-average", "ad-psgd"] {
        spawn(TransportKind::Thread, 3, |comm| {
            let mut trainer = trainer(&comm, registry::named(name)?)?;
            for _ in 0..5 {
                step(&comm, &mut trainer)?;
                trainer.engine().settle()?;
                let settled = trainer.parameters()?;
                let mean = trainer.engine().with_mean(|engine| engine.values::<f32>(0).unwrap())?;
                assert_eq!(trainer.parameters()?, settled);
                let mut all = vec![0.0f32; ELEMENTS * comm.size()];
                comm.blocking().all_gather(&mean.result, &mut all)?;
                assert!(all.chunks(ELEMENTS).all(|other| other == mean.result));
            }
            trainer.engine().settle()
        })
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn identical_replicas_are_their_mean_and_within_a_step_it_is_refused() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut trainer = trainer(&comm, GradientAllReduce.into())?;
        step(&comm, &mut trainer)?;
        let own = trainer.parameters()?.remove(0);
        let sent = comm.world().traffic().bytes_sent();
        let found = trainer.engine().with_mean(|engine| engine.values::<f32>(0).unwrap())?;
        assert_eq!(found.result, own);
        assert_eq!(found.consensus_distance, 0.0);
        assert_eq!(comm.world().traffic().bytes_sent(), sent);
        Ok(())
    })
    .unwrap();
    let refused = spawn(TransportKind::Thread, 2, |comm| {
        let mut trainer = trainer(&comm, registry::named("local-sgd")?)?;
        trainer.engine().begin(hexagram_algorithms::Mode::Synchronize)?;
        trainer.engine().with_mean(|_| ()).map(drop)
    });
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("backward pass"), "{error}");
}
