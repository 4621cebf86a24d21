//! The asynchronous model average: it preserves the mean, no rank waits for a slow one, and it can be aborted and
//! resumed.

use hexagram_algorithms::async_model_average::AsyncModelAverage;
use hexagram_algorithms::logical::testing::{cases, spawn, spawn_hosts, transports};
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::testing::{Quadratic, Setup, Trainer};
use hexagram_algorithms::{EngineOptions, GradientAllReduce};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Averages without a pause.
const EAGER: AsyncModelAverage = AsyncModelAverage { interval: 0.0, warm_up: 0, codec: None, approach: 1.0 };

fn trainer(comm: &Communicator, algorithm: AsyncModelAverage, begin: Vec<f64>) -> Result<Trainer<f64>> {
    Trainer::new(comm, Arc::new(algorithm), Setup::default(), &[begin])
}

/// The mean of every element over ranks, and the largest distance between ranks.
fn mean(comm: &Communicator, mine: &[f64]) -> (Vec<f64>, f64) {
    let mut all = vec![0.0; mine.len() * comm.size()];
    comm.blocking().all_gather(mine, &mut all).unwrap();
    let rows: Vec<&[f64]> = all.chunks(mine.len()).collect();
    let mean = |at: usize| rows.iter().map(|row| row[at]).sum::<f64>() / rows.len() as f64;
    let mean: Vec<f64> = (0..mine.len()).map(mean).collect();
    let apart = rows.iter().flat_map(|row| row.iter().zip(&mean)).map(|(x, mean)| (x - mean).abs());
    let apart = apart.fold(0.0, f64::max);
    (mean, apart)
}

/// Gradients that differ between replicas, but do not depend on their parameters.
fn gradient(rank: usize, step: usize, at: usize) -> f64 {
    ((rank * 31 + step * 13 + at * 7) % 101) as f64 / 101.0 - 0.5
}

#[test]
fn the_mean_of_the_replicas_is_that_of_their_own_steps() {
    for (transport, ranks) in cases(&[1, 2, 5]) {
        spawn(transport, ranks, |comm| keeps_the_mean(&comm, EngineOptions::default()))
            .unwrap_or_else(|error| panic!("{transport} × {ranks}: {error}"));
    }
    let engine = || EngineOptions { hierarchical: true, ..EngineOptions::default() };
    spawn_hosts(&[0, 0, 0, 1, 2], |comm| keeps_the_mean(&comm, engine())).unwrap();
}

fn keeps_the_mean(comm: &Communicator, engine: EngineOptions) -> Result<()> {
    let steps = 200;
    let begin: Vec<f64> = (0..500).map(|at| at as f64 / 500.0).collect();
    let setup = Setup { engine, ..Setup::default() };
    let mut trainer = Trainer::new(comm, Arc::new(EAGER), setup, std::slice::from_ref(&begin))?;
    for step in 0..steps {
        trainer.step(|_, x| (0..x.len()).map(|at| gradient(comm.rank(), step, at)).collect())?;
    }
    trainer.engine().settle()?;
    let (found, _) = mean(comm, &trainer.parameters()?[0]);
    for (at, (found, begin)) in found.iter().zip(&begin).enumerate() {
        let all = (0..comm.size()).flat_map(|rank| (0..steps).map(move |step| gradient(rank, step, at)));
        let expected = begin - 0.1 * all.sum::<f64>() / comm.size() as f64;
        assert!((found - expected).abs() < 3e-14, "{found} and not {expected}");
    }
    Ok(())
}

#[test]
fn nobody_waits_for_a_rank_that_stands_still() {
    for transport in transports() {
        let replicas = super::laggard::replicas(transport, 4, 300, || EAGER.into()).unwrap();
        // An average between the minima, plus the updates of a rank meanwhile: at most the distance between two minima.
        assert!(replicas.iter().flatten().all(|x| (-3.0..=6.0).contains(x)), "{transport}");
    }
}

#[test]
fn replicas_meet_near_the_common_minimum() {
    let problem = Quadratic { a: vec![1.0; 4], b: vec![0.0, 1.0, -2.0, 4.0] };
    spawn(TransportKind::Thread, 4, |comm| {
        let mut trainer = trainer(&comm, EAGER, vec![0.7; 10])?;
        for _ in 0..400 {
            trainer.step(|_, x| problem.gradient(comm.rank(), x))?;
            // Otherwise replicas would move to the minimum of the rank that steps last.
            comm.blocking().barrier()?;
        }
        // From here on only averages change anything.
        trainer.engine().set_learning_rate(0.0);
        let started = Instant::now();
        loop {
            for _ in 0..20 {
                trainer.step(|_, x| x.to_vec())?;
            }
            let (mean, apart) = mean(&comm, &trainer.parameters()?[0]);
            if apart == 0.0 {
                // The distance depends on the times at which averages arrived.
                assert!((mean[0] - 0.75).abs() < 1.5, "{}", mean[0]);
                return trainer.engine().settle();
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{apart} apart");
        }
    })
    .unwrap();
}

#[test]
fn it_is_aborted_and_resumed_within_seconds() {
    for transport in transports() {
        let algorithm = AsyncModelAverage { interval: 0.0, warm_up: 10, ..AsyncModelAverage::default() };
        let replicas = spawn(transport, 3, |comm| {
            let started = Instant::now();
            let mut trainer = trainer(&comm, algorithm.clone(), vec![0.0; 100])?;
            for round in 0..11 {
                let steps = if round == 0 { 1000 } else { 5 + comm.rank() };
                for _ in 0..steps {
                    trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f64).collect())?;
                }
                trainer.engine().settle()?;
                trainer.engine().settle()?;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{transport}: {:?}", started.elapsed());
            let (mean, _) = mean(&comm, &trainer.parameters()?[0]);
            Ok(mean)
        });
        let replicas = replicas.unwrap();
        assert!(
            replicas.iter().all(|mean| *mean == replicas[0] && (mean[0] - 1.0).abs() < 0.9),
            "{transport}"
        );
    }
}

#[test]
fn its_warm_up_is_synchronous_sgd() {
    let problem = Quadratic { a: vec![1.0, 3.0, 0.5], b: vec![0.0, 1.0, -2.0] };
    spawn(TransportKind::Shm, 3, |comm| {
        let run = |algorithm: hexagram_algorithms::AnyAlgorithm| -> Result<Vec<f64>> {
            let mut trainer = Trainer::new(&comm, algorithm, Setup::default(), &[vec![0.7; 3]])?;
            for _ in 0..10 {
                trainer.step(|_, x| problem.gradient(comm.rank(), x))?;
            }
            trainer.engine().settle()?;
            Ok(trainer.parameters()?.remove(0))
        };
        let warm =
            run(AsyncModelAverage { interval: 0.0, warm_up: 10, ..AsyncModelAverage::default() }.into())?;
        assert_eq!(warm, run(GradientAllReduce.into())?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_rank_that_ends_early_ends_the_others_with_its_name() {
    super::laggard::ends_early(|| EAGER.into());
}
