//! Training on ranks whose GPUs NCCL connects: replicas stay identical, and what messages alone decide has the bits of
//! the host. Where there are too few GPUs, or no NCCL, it says so.

use super::late::{Bits, bits, difference, ranks, train};
use super::warmed_up::algorithms;
use hexagram_algorithms::AnyAlgorithm;
use hexagram_algorithms::logical::device::cuda::{Cuda, devices};
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Queue, Result, TransportKind};

/// What NCCL sums itself, and what is encoded, or exchanged between neighbours.
const SAMPLE: [&str; 3] = ["gradient-allreduce", "bytegrad", "choco-sgd"];

/// Returns what each rank has after training on its GPU, and the bytes that it sent through NCCL; `None` if there is no
/// NCCL.
fn trained(algorithm: &AnyAlgorithm) -> Option<Vec<(Vec<Bits>, u64)>> {
    let run = |comm: Communicator| -> Result<_> {
        let queue = Cuda::new(comm.rank())?.queue()?;
        if comm.attach(&queue)? != Some(TransportKind::Nccl) {
            return Ok(None);
        }
        let record = bits(&train(&comm, algorithm.clone(), &|| queue.clone())?)?;
        Ok(Some((record, comm.world().traffic().bytes_sent_by(TransportKind::Nccl))))
    };
    let found = spawn(TransportKind::Shm, ranks(algorithm), run);
    found.unwrap_or_else(|error| panic!("{algorithm:?}: {error}")).into_iter().collect()
}

#[test]
fn replicas_stay_identical() {
    let has_gpus = devices().is_ok_and(|found| found.len() >= 3);
    for algorithm in algorithms().into_iter().filter(|algorithm| SAMPLE.contains(&algorithm.name())) {
        let Some(trained) = has_gpus.then(|| trained(&algorithm)).flatten() else {
            eprintln!("skipped: 3 GPUs and NCCL are needed");
            return;
        };
        let (mut found, sent): (Vec<_>, Vec<_>) = trained.into_iter().unzip();
        assert!(sent.iter().all(|bytes| *bytes > 0), "{algorithm:?}: {sent:?}");
        if algorithm.name() == "gradient-allreduce" {
            // Whose record it is, it says itself.
            found.iter_mut().for_each(|record| record.retain(|(name, _)| name != "rank"));
            for rank in &found {
                assert!(
                    rank == &found[0],
                    "{algorithm:?}: {}",
                    difference(&found[..1], std::slice::from_ref(rank))
                );
            }
        } else {
            let on_host = |comm: Communicator| bits(&train(&comm, algorithm.clone(), &Queue::host)?);
            let expected = spawn(TransportKind::Thread, ranks(&algorithm), on_host).unwrap();
            assert!(found == expected, "{algorithm:?}: {}", difference(&expected, &found));
        }
    }
}
