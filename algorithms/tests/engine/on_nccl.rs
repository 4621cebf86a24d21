//! Training on ranks whose GPUs are connected by NCCL: replicas stay identical, and results that depend only on
//! messages have the bits of the host. Prints that it is skipped with too few GPUs, or without NCCL.

use super::late::{Bits, bits, difference, ranks, train};
use super::warmed_up::algorithms;
use hexagram_algorithms::logical::device::cuda::{Cuda, devices};
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Buffer, Communicator, DType, Queue, Result, TransportKind};
use hexagram_algorithms::{
    About, Algorithm, AnyAlgorithm, Bucket, Context, DataParallel, EngineOptions, Mode, Parameter, Sgd,
    Trigram,
};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Sums by NCCL, and messages, encoded or between neighbours.
const SAMPLE: [&str; 3] = ["gradient-allreduce", "bytegrad", "choco-sgd"];

/// Takes the mean of a bucket twice, with a pause in between that depends on rank and bucket.
#[derive(Debug, Clone)]
struct Twice;

impl Algorithm for Twice {
    type State = ();

    fn about(&self) -> About {
        About::new("twice", Trigram { centralized: true, synchronous: true, full_precision: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, _: &mut (), bucket: &mut Bucket) -> Result<()> {
        context.mean(&mut bucket.gradients).await?;
        let mut rounds = 1000 * ((context.rank() + context.bucket()) % 3);
        poll_fn(|polling| {
            polling.waker().wake_by_ref();
            rounds = rounds.saturating_sub(1);
            if rounds == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        context.mean(&mut bucket.gradients).await
    }
}

/// Returns the state of each rank after training on its GPU, and the bytes that it sent through NCCL; `None` without
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
        if algorithm.trigram().full_precision {
            assert!(sent.iter().all(|bytes| *bytes > 0), "{algorithm:?}: {sent:?}");
            // The record contains the rank.
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

/// Concurrent hooks would reach their second collectives in an order that depends on timing.
#[test]
fn hooks_of_several_collectives_call_them_in_one_order() {
    const BUCKETS: usize = 4;
    const LEN: usize = 1000;
    let run = |comm: Communicator| -> Result<bool> {
        let queue = Cuda::new(comm.rank())?.queue()?;
        comm.set_deadline(Duration::from_secs(20));
        if comm.attach(&queue)? != Some(TransportKind::Nccl) {
            return Ok(false);
        }
        let parameter = |index| Parameter { name: format!("p{index}"), dtype: DType::F32, shape: vec![LEN] };
        let (first_bucket_bytes, bucket_bytes) = (4 * LEN, 4 * LEN);
        let options = EngineOptions {
            optimizer: Some(Arc::new(Sgd::default())),
            queue: queue.clone(),
            first_bucket_bytes,
            bucket_bytes,
            ..EngineOptions::default()
        };
        let mut engine = DataParallel::new(&comm, (0..BUCKETS).map(parameter).collect(), Twice, options)?;
        engine.set_learning_rate(0.05);
        assert_eq!(engine.telemetry().buckets().len(), BUCKETS);
        for _ in 0..3 {
            engine.begin(Mode::Synchronize)?;
            let hooks = engine.hooks();
            for index in (0..BUCKETS).rev() {
                hooks.ready(index, &Buffer::from_slice_on(&queue, &[comm.rank() as f32; LEN])?)?;
            }
            engine.finish_and_step()?;
        }
        Ok(true)
    };
    if devices().is_ok_and(|found| found.len() >= 3) {
        spawn(TransportKind::Shm, 3, run).unwrap();
    } else {
        eprintln!("skipped: 3 GPUs and NCCL are needed");
    }
}
