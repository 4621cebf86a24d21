//! SSP against synchronous SGD, its bound on staleness, and the state after a settle.

use hexagram_algorithms::logical::testing::{cases, spawn, transports};
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::ssp::Ssp;
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, GradientAllReduce};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn trainer(comm: &Communicator, algorithm: impl Into<AnyAlgorithm>, rate: f64) -> Result<Trainer<f32>> {
    let setup = Setup { learning_rate: rate, ..Setup::default() };
    let begin: Vec<f32> = (0..1003).map(|at| at as f32).collect();
    Trainer::new(comm, algorithm, setup, &[begin])
}

/// The gradient of (x − r)²/2 on rank r.
fn gradient(comm: &Communicator, x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| x - comm.rank() as f32).collect()
}

#[test]
fn without_staleness_it_is_synchronous_sgd() {
    // Of 32 ranks, half have no shard.
    for (transport, ranks) in cases(&[1, 2, 4]).into_iter().chain([(TransportKind::Thread, 32)]) {
        let run = |algorithm: fn() -> AnyAlgorithm| {
            let run = |comm: Communicator| -> Result<Vec<Vec<f32>>> {
                let mut trainer = trainer(&comm, algorithm(), 0.5)?;
                let mut replicas = Vec::new();
                // So few steps, with powers of two, that f32 represents every number exactly.
                for step in 0..8 {
                    trainer.step(|_, x| gradient(&comm, x))?;
                    replicas.push(trainer.parameters()?.remove(0));
                    if step == 3 {
                        trainer.engine().settle()?;
                    }
                }
                trainer.engine().settle()?;
                replicas.push(trainer.parameters()?.remove(0));
                Ok(replicas)
            };
            spawn(transport, ranks, run).unwrap()
        };
        let found = run(|| Ssp { staleness: 0, ..Ssp::default() }.into());
        let expected = run(|| GradientAllReduce.into());
        assert!(found == expected, "{transport} × {ranks}");
    }
}

#[test]
fn without_staleness_replicas_are_bit_identical_where_numbers_round() {
    let found = spawn(TransportKind::Tcp, 3, |comm| {
        let mut trainer = trainer(&comm, Arc::new(Ssp { staleness: 0, ..Ssp::default() }), 0.1)?;
        for _ in 0..60 {
            trainer.step(|_, x| gradient(&comm, x))?;
        }
        let before = trainer.parameters()?.remove(0);
        trainer.engine().settle()?;
        Ok((before, trainer.parameters()?.remove(0)))
    });
    let found = found.unwrap();
    assert!(found.iter().all(|(before, after)| before == after && *before == found[0].0));
    // After 60 steps of x ← x − γ (x − 1), to f32.
    for (at, x) in found[0].0.iter().enumerate() {
        let expected = 1.0 + (at as f64 - 1.0) * 0.9f64.powi(60);
        assert!((f64::from(*x) - expected).abs() < 1e-4, "{x} and not {expected}");
    }
}

#[test]
fn nobody_waits_for_a_rank_that_stands_still_within_the_staleness() {
    for transport in transports() {
        let replicas =
            super::laggard::replicas(transport, 4, 60, || Ssp { staleness: 60, ..Ssp::default() }.into())
                .unwrap();
        assert!(replicas.iter().all(|replica| *replica == replicas[0]), "{transport}");
        // Between the minima, or beyond them by one late push of each rank.
        assert!(replicas[0].iter().all(|x| (-0.25..=3.25).contains(x)), "{transport}: {}", replicas[0][0]);
    }
}

#[test]
fn nobody_is_further_ahead_than_the_staleness() {
    let staleness = 4;
    let stop = 3;
    let steps = 20;
    let slow = AtomicU64::new(0);
    let (arrived, arrivals) = channel();
    let arrivals = Mutex::new(arrivals);
    spawn(TransportKind::Shm, 3, |comm| {
        let mut trainer = trainer(&comm, Arc::new(Ssp { staleness, ..Ssp::default() }), 0.1)?;
        for step in 0..steps {
            if comm.rank() == 1 && step == stop {
                let arrivals = arrivals.lock().unwrap();
                for _ in 0..2 {
                    arrivals.recv_timeout(Duration::from_secs(120)).unwrap();
                }
            }
            if comm.rank() == 1 {
                slow.store(step, Ordering::SeqCst);
            }
            trainer.step(|_, x| gradient(&comm, x))?;
            if comm.rank() != 1 {
                let mine = step + 1;
                let slowest = slow.load(Ordering::SeqCst) + 1;
                assert!(mine <= slowest + staleness, "{mine} steps, where the slowest has begun {slowest}");
                // The last step before one that must wait.
                if mine == stop + staleness {
                    arrived.send(()).unwrap();
                }
            }
        }
        trainer.engine().settle()
    })
    .unwrap();
}

#[test]
fn settling_makes_all_replicas_those_of_the_servers_after_any_number_of_steps() {
    for (transport, ranks) in cases(&[2, 3]) {
        let found = spawn(transport, ranks, |comm| {
            let mut trainer = trainer(&comm, Arc::new(Ssp { staleness: 2, ..Ssp::default() }), 0.125)?;
            let mut replicas = Vec::new();
            for round in 0..3 {
                // Ranks end a round after different numbers of steps.
                for _ in 0..2 + (comm.rank() + round) % 4 * 3 {
                    trainer.step(|_, x| vec![comm.rank() as f32 + 1.0; x.len()])?;
                }
                trainer.engine().settle()?;
                trainer.engine().settle()?;
                replicas.push(trainer.parameters()?.remove(0));
            }
            Ok(replicas)
        });
        let found = found.unwrap();
        assert!(found.iter().all(|replicas| *replicas == found[0]), "{transport} × {ranks}");
        // No push is lost or counted twice.
        let steps = |rank| (0..3).map(|round| 2 + (rank + round) % 4 * 3).sum::<usize>();
        let pushed: f64 = (0..ranks).map(|rank| 0.125 * (steps(rank) * (rank + 1)) as f64).sum();
        for (at, x) in found[0][2].iter().enumerate() {
            let expected = at as f64 - pushed / ranks as f64;
            assert!((f64::from(*x) - expected).abs() < 1e-2, "{x} and not {expected}");
        }
    }
}

#[test]
fn other_elements_than_f32_are_refused() {
    let refused = spawn(TransportKind::Thread, 2, |comm| {
        let algorithm = Arc::new(Ssp::default());
        Trainer::new(&comm, algorithm, Setup::default(), &[vec![0.0f64]])?.engine().initial().prepare()
    });
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("f32, not f64"), "{error}");
}

#[test]
fn a_rank_that_ends_early_ends_the_others_with_its_name() {
    super::laggard::ends_early(|| Ssp::default().into());
}
