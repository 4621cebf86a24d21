//! Engines on groups of ranks: each trains as if its ranks were the world.

use super::warmed_up::{algorithms, sampled};
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer, fitting};
use hexagram_algorithms::{AnyAlgorithm, GradientAllReduce};
use std::sync::Arc;

const STEPS: usize = 8;

/// Model of a few parameters that its ranks train, and the number of steps.
struct Training {
    trainer: Trainer<f32>,
    rank: usize,
}

impl Training {
    fn new(comm: &Communicator, algorithm: &AnyAlgorithm) -> Result<Self> {
        let setup = Setup::default();
        let setup = Setup { optimizer: fitting(algorithm, Arc::clone(&setup.optimizer)), ..setup };
        let initial = [vec![1.0, -2.0, 0.5, 3.0], vec![0.25; 3]];
        let shapes = [vec![2, 2], vec![3]];
        let trainer = Trainer::with_shapes(comm, algorithm.clone(), setup, &initial, &shapes)?;
        Ok(Training { trainer, rank: comm.rank() })
    }

    /// Steps towards a minimum that depends on the index of this rank in its group.
    fn step(&mut self) -> Result<()> {
        let minimum = self.rank as f32;
        self.trainer.step(|_, x| x.iter().map(|x| x - minimum).collect())
    }

    fn settle(mut self) -> Result<Vec<Vec<f32>>> {
        self.trainer.engine().settle()?;
        self.trainer.parameters()
    }
}

/// Returns the replicas of a world, by rank.
fn in_a_world(ranks: usize, algorithm: &AnyAlgorithm) -> Vec<Vec<Vec<f32>>> {
    let train = |comm: Communicator| {
        let mut training = Training::new(&comm, algorithm)?;
        (0..STEPS).try_for_each(|_| training.step())?;
        training.settle()
    };
    spawn(TransportKind::Thread, ranks, train).unwrap_or_else(|error| panic!("{algorithm:?}: {error}"))
}

#[test]
fn disjoint_groups_train_as_worlds_of_their_own() {
    for algorithm in sampled(algorithms()) {
        let train = |comm: Communicator| {
            let ranks: &[usize] = if comm.rank() < 2 { &[1, 0] } else { &[2, 4, 3] };
            let group = comm.block_on(comm.group_of(ranks))?;
            let mut training = Training::new(&group, &algorithm)?;
            (0..STEPS).try_for_each(|_| training.step())?;
            Ok((group.size(), group.rank(), training.settle()?))
        };
        let found = spawn(TransportKind::Thread, 5, train);
        let found = found.unwrap_or_else(|error| panic!("{algorithm:?} in groups: {error}"));
        if !algorithm.trigram().synchronous {
            continue;
        }
        let worlds = [in_a_world(2, &algorithm), in_a_world(3, &algorithm)];
        for (size, rank, parameters) in found {
            assert_eq!(parameters, worlds[size - 2][rank], "{algorithm:?} on rank {rank} of {size}");
        }
    }
}

#[test]
fn a_rank_trains_a_model_in_each_of_its_groups() {
    let algorithm = AnyAlgorithm::from(GradientAllReduce);
    let train = |comm: Communicator| {
        let mut trainings = Vec::new();
        // Ranks 0 and 1, 1 and 2, 2 and 0: each has two engines.
        for ranks in [[0, 1], [1, 2], [2, 0]].iter().filter(|ranks| ranks.contains(&comm.rank())) {
            let group = comm.block_on(comm.group_of(ranks))?;
            trainings.push(Training::new(&group, &algorithm)?);
        }
        for _ in 0..STEPS {
            trainings.iter_mut().try_for_each(Training::step)?;
        }
        trainings
            .into_iter()
            .map(|training| Ok((training.rank, training.settle()?)))
            .collect::<Result<Vec<_>>>()
    };
    let pair = in_a_world(2, &algorithm);
    for transport in [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp] {
        let replicas = spawn(transport, 3, train).unwrap_or_else(|error| panic!("{transport}: {error}"));
        for (rank, parameters) in replicas.into_iter().flatten() {
            assert_eq!(parameters, pair[rank], "over {transport}");
        }
    }
}
