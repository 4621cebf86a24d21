//! A training in which one rank stops or ends early: which ranks wait for it is determined without a clock.

use hexagram_algorithms::AnyAlgorithm;
use hexagram_algorithms::logical::testing::{spawn, transports};
use hexagram_algorithms::logical::{Communicator, Error, Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::time::Duration;

/// Steps of the stopped rank before it stops.
const BEFORE: usize = 3;

/// Trains with rank 1 stopped in the middle of a step until each other rank has made `steps`, settles, and returns the
/// replicas. Rank r has f(x) = (x − r)²/2.
///
/// # Panics
/// If the others wait for rank 1.
pub(crate) fn replicas(
    transport: TransportKind,
    ranks: usize,
    steps: usize,
    algorithm: impl Fn() -> AnyAlgorithm + Sync,
) -> Result<Vec<Vec<f32>>> {
    let (arrived, arrivals) = channel();
    let arrivals = Mutex::new(arrivals);
    spawn(transport, ranks, |comm| {
        let rank = comm.rank();
        let mut trainer = Trainer::new(&comm, algorithm(), Setup::default(), &[vec![0.0f32; 100]])?;
        let gradient = |x: &[f32]| x.iter().map(|x| x - rank as f32).collect();
        if rank == 1 {
            (0..BEFORE).try_for_each(|_| trainer.step(|_, x| gradient(x)))?;
            trainer.step(|_, x| {
                let arrivals = arrivals.lock().unwrap();
                for other in 1..ranks {
                    let arrival = arrivals.recv_timeout(Duration::from_secs(120));
                    assert!(arrival.is_ok(), "{} ranks wait for the one that stands still", ranks - other);
                }
                gradient(x)
            })?;
        } else {
            (0..steps).try_for_each(|_| trainer.step(|_, x| gradient(x)))?;
            arrived.send(()).unwrap();
        }
        trainer.engine().settle()?;
        Ok(trainer.parameters()?.remove(0))
    })
}

/// Trains on three ranks until rank 2 returns with its own error.
///
/// # Panics
/// Unless the others end with an error that gives the reason.
pub(crate) fn ends_early(algorithm: impl Fn() -> AnyAlgorithm + Sync) {
    for transport in transports() {
        let all_begun = Barrier::new(3);
        let run = |comm: &Communicator| -> Result<()> {
            let mut trainer = Trainer::new(comm, algorithm(), Setup::default(), &[vec![0.0f32; 100]])?;
            trainer.step(|_, x| x.to_vec())?;
            all_begun.wait();
            if comm.rank() == 2 {
                // As `?` does for an error of the program.
                return Err(Error::usage("there is no more data", "get some"));
            }
            loop {
                trainer.step(|_, x| x.to_vec())?;
            }
        };
        let errors = spawn(transport, 3, |comm| Ok(run(&comm).unwrap_err().to_string())).unwrap();
        for (rank, error) in errors.iter().enumerate() {
            let expected = if rank == 2 { "no more data" } else { "before it was settled" };
            assert!(error.contains(expected), "{transport}, rank {rank}: {error}");
        }
    }
}
