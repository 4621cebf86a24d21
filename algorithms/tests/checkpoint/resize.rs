//! Checkpoints that a different number of ranks loads.

use super::errors_of;
use hexagram_algorithms::checkpoint::{Checkpoints, Record};
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::testing::{Scratch, Setup, Trainer, fitting};
use hexagram_algorithms::{AnyAlgorithm, Sgd, registry};
use std::path::Path;
use std::sync::Arc;

/// Ranks that save.
const SAVED: usize = 4;

fn trainer(comm: &Communicator, algorithm: &AnyAlgorithm) -> Result<Trainer<f32>> {
    let optimizer = fitting(algorithm, Arc::new(Sgd { momentum: 0.9, ..Sgd::default() }));
    let setup = Setup { learning_rate: 0.05, optimizer, ..Setup::default() };
    Trainer::new(comm, algorithm.clone(), setup, &[vec![1.0; 6], vec![-2.0; 10]])
}

/// Steps towards a minimum of each rank's own.
fn steps(trainer: &mut Trainer<f32>, comm: &Communicator, count: usize) -> Result<()> {
    let minimum = 3.0 + comm.rank() as f32;
    (0..count).try_for_each(|_| trainer.step(|_, x| x.iter().map(|x| x - minimum).collect()))
}

/// Trains and saves with [`SAVED`] ranks; returns the parameters of each.
fn save(at: &Path, algorithm: &AnyAlgorithm) -> Vec<Vec<Vec<f32>>> {
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm, algorithm)?;
        steps(&mut trainer, &comm, 7)?;
        Checkpoints::new(at).save(trainer.engine(), Record::default())?;
        trainer.parameters()
    };
    spawn(TransportKind::Thread, SAVED, run).unwrap()
}

/// The parameters of each of `ranks` ranks after loading, and after some more steps.
fn resume(at: &Path, algorithm: &AnyAlgorithm, ranks: usize) -> Vec<[Vec<Vec<f32>>; 2]> {
    let run = |comm: Communicator| {
        let mut trainer = trainer(&comm, algorithm)?;
        let checkpoints = Checkpoints { any_ranks: true, ..Checkpoints::new(at) };
        checkpoints.load(trainer.engine())?.unwrap();
        assert_eq!(trainer.engine().steps(), 7);
        let loaded = trainer.parameters()?;
        steps(&mut trainer, &comm, 5)?;
        trainer.engine().settle()?;
        Ok([loaded, trainer.parameters()?])
    };
    spawn(TransportKind::Thread, ranks, run).unwrap()
}

#[test]
fn every_algorithm_goes_on_with_more_or_fewer_ranks_from_the_mean_of_all() {
    for algorithm in registry::all() {
        let scratch = Scratch::new();
        let saved = save(scratch.path(), &algorithm);
        let mean = |tensor: usize, at: usize| {
            saved.iter().map(|replica| replica[tensor][at]).sum::<f32>() / SAVED as f32
        };
        for ranks in [1, 3, 6] {
            let name = format!("{} with {ranks} ranks", algorithm.name());
            let resumed = resume(scratch.path(), &algorithm, ranks);
            for [loaded, trained] in &resumed {
                for (tensor, values) in loaded.iter().enumerate() {
                    for (at, x) in values.iter().enumerate() {
                        assert!((x - mean(tensor, at)).abs() < 1e-5, "{name}: {x} {}", mean(tensor, at));
                    }
                }
                assert!(trained.iter().flatten().all(|x| x.is_finite()), "{name}: {trained:?}");
                assert_ne!(loaded, trained, "{name}");
                if algorithm.keeps_replicas_identical() {
                    assert_eq!(loaded, &saved[0], "{name}");
                    assert_eq!(trained, &resumed[0][1], "{name}");
                }
            }
        }
    }
}

#[test]
fn without_permission_another_number_of_ranks_is_an_error() {
    let scratch = Scratch::new();
    let algorithm = registry::named("gradient-allreduce").unwrap();
    save(scratch.path(), &algorithm);
    let errors = errors_of(2, |comm| {
        Checkpoints::new(scratch.path()).load(trainer(comm, &algorithm)?.engine()).map(drop)
    });
    assert!(errors.iter().all(|error| error.contains("is of 4 ranks, not 2")), "{errors:?}");
}

#[test]
fn a_directory_without_all_files_is_refused_on_every_rank() {
    let scratch = Scratch::new();
    let algorithm = registry::named("local-sgd").unwrap();
    save(scratch.path(), &algorithm);
    std::fs::remove_file(scratch.path().join("step-000007/rank-00003-of-00004.safetensors")).unwrap();
    let errors = errors_of(2, |comm| {
        let checkpoints = Checkpoints { any_ranks: true, ..Checkpoints::new(scratch.path()) };
        checkpoints.load(trainer(comm, &algorithm)?.engine()).map(drop)
    });
    assert!(errors.iter().all(|error| error.contains("rank-00003-of-00004")), "{errors:?}");
}
