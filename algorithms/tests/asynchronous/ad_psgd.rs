//! AD-PSGD: averages preserve the mean, replicas converge, and no rank waits for a slow one.

use hexagram_algorithms::ad_psgd::AdPsgd;
use hexagram_algorithms::logical::testing::{cases, spawn, transports};
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn trainer(comm: &Communicator, algorithm: AdPsgd, begin: Vec<f64>) -> Result<Trainer<f64>> {
    Trainer::new(comm, Arc::new(algorithm), Setup::default(), &[begin])
}

/// The initial parameters of every rank.
fn gathered(comm: &Communicator, trainer: &Trainer<f64>) -> Vec<Vec<f64>> {
    let mine = trainer.parameters().unwrap().remove(0);
    let mut all = vec![0.0; mine.len() * comm.size()];
    comm.blocking().all_gather(&mine, &mut all).unwrap();
    all.chunks(mine.len()).map(<[f64]>::to_vec).collect()
}

/// Gradients that differ between replicas, but do not depend on their parameters.
fn gradient(rank: usize, step: usize, at: usize) -> f64 {
    ((rank * 31 + step * 13 + at * 7) % 101) as f64 / 101.0 - 0.5
}

#[test]
fn the_mean_of_the_replicas_is_that_of_their_own_steps() {
    for (transport, ranks) in cases(&[1, 2, 5]) {
        spawn(transport, ranks, |comm| {
            let steps = 100;
            let begin: Vec<f64> = (0..500).map(|at| at as f64 / 500.0).collect();
            let mut trainer = trainer(&comm, AdPsgd::default(), begin.clone())?;
            for step in 0..steps {
                trainer.step(|_, x| (0..x.len()).map(|at| gradient(comm.rank(), step, at)).collect())?;
                if step == steps / 2 {
                    trainer.engine().settle()?;
                }
            }
            trainer.engine().settle()?;
            let found = gathered(&comm, &trainer);
            for (at, begin) in begin.iter().enumerate() {
                let found = found.iter().map(|row| row[at]).sum::<f64>() / ranks as f64;
                let all = (0..ranks).flat_map(|rank| (0..steps).map(move |step| gradient(rank, step, at)));
                let expected = begin - 0.1 * all.sum::<f64>() / ranks as f64;
                assert!((found - expected).abs() < 3e-14, "{transport}: {found} and not {expected}");
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{transport} × {ranks}: {error}"));
    }
}

#[test]
fn nobody_waits_for_a_rank_that_stands_still() {
    for transport in transports() {
        for ranks in [2, 5] {
            let replicas =
                super::laggard::replicas(transport, ranks, 60, || AdPsgd::default().into()).unwrap();
            // Between the minima, or beyond them by the steps with gradients from before an average.
            let bounds = -0.5..=(ranks - 1) as f32 + 0.5;
            assert!(replicas.iter().flatten().all(|x| bounds.contains(x)), "{transport} × {ranks}");
        }
    }
}

#[test]
fn replicas_meet_also_where_their_number_is_odd() {
    for ranks in [2, 3, 5] {
        spawn(TransportKind::Shm, ranks, |comm| {
            let mut trainer =
                trainer(&comm, AdPsgd { interval: 2, seed: 7, ..AdPsgd::default() }, vec![0.7; 10])?;
            for _ in 0..200 {
                trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f64).collect())?;
            }
            // From here on only averages change anything.
            trainer.engine().set_learning_rate(0.0);
            let started = Instant::now();
            loop {
                for _ in 0..50 {
                    trainer.step(|_, x| x.to_vec())?;
                }
                trainer.engine().settle()?;
                let all = gathered(&comm, &trainer);
                if all.iter().flatten().all(|x| (x - all[0][0]).abs() < 1e-12) {
                    return Ok(());
                }
                assert!(started.elapsed() < Duration::from_secs(60), "{all:?}");
            }
        })
        .unwrap();
    }
}

#[test]
fn a_rank_that_ends_early_ends_the_others_with_its_name() {
    super::laggard::ends_early(|| AdPsgd::default().into());
}
