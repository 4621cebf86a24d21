//! Ranks with a GPU each, and buffers there.

use hexagram_logical::testing::spawn;
use hexagram_logical::{Buffer, Communicator, Element, Queue, Result, TransportKind};
use hexagram_physical::device::cuda::{Cuda, devices};
use hexagram_physical::nccl;
use std::pin::Pin;
use std::task::Poll;

pub(crate) const TRANSPORTS: [TransportKind; 3] =
    [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp];

/// Returns true if there are so many GPUs, and NCCL; says so if not.
pub(crate) fn can_have(ranks: usize) -> bool {
    let found = devices().map_or(0, |found| found.len());
    let is_there = found >= ranks && nccl::version().is_ok();
    if !is_there {
        eprintln!("skipped: {ranks} GPUs and NCCL are needed; there are {found} GPUs");
    }
    is_there
}

/// Runs `body` on ranks whose GPUs NCCL connects, and returns what they returned; nothing if there are too few GPUs.
pub(crate) fn on_gpus<R: Send>(
    transport: TransportKind,
    ranks: usize,
    body: impl Fn(&Communicator, &Queue) -> Result<R> + Sync,
) -> Vec<R> {
    if !can_have(ranks) {
        return Vec::new();
    }
    let attached = |comm: Communicator| {
        let queue = Cuda::new(comm.rank())?.queue()?;
        let path = comm.attach(&queue)?;
        assert_eq!(path, Some(TransportKind::Nccl));
        body(&comm, &queue)
    };
    spawn(transport, ranks, attached).unwrap_or_else(|error| panic!("{transport} × {ranks}: {error}"))
}

/// Compares what ranks get from their GPUs, over these transports, with what they get from the host.
#[track_caller]
pub(crate) fn gives_what_the_host_gives<R: Send + PartialEq>(
    transports: &[TransportKind],
    ranks: usize,
    body: impl Fn(&Communicator, &Queue) -> Result<R> + Sync,
) {
    let want = spawn(TransportKind::Thread, ranks, |comm| body(&comm, &Queue::host())).unwrap();
    for transport in transports {
        for (rank, got) in on_gpus(*transport, ranks, &body).into_iter().enumerate() {
            assert!(got == want[rank], "{transport} × {ranks}, rank {rank}");
        }
    }
}

/// Returns a buffer of a rank's GPU.
pub(crate) fn buffer<T: Element>(queue: &Queue, elements: &[T]) -> Buffer {
    Buffer::from_slice_on(queue, elements).unwrap()
}

/// Small whole numbers that tell rank and position apart.
pub(crate) fn number(rank: usize, at: usize) -> i64 {
    ((rank * 5 + at * 3) % 7) as i64
}

/// Returns the numbers of a rank.
pub(crate) fn numbers(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| number(rank, at) as f32).collect()
}

/// Polls all futures in turn to their ends.
pub(crate) async fn together<F: Future<Output = Result<()>>>(futures: Vec<F>) -> Result<()> {
    let mut pending: Vec<Option<Pin<Box<F>>>> = futures.into_iter().map(|one| Some(Box::pin(one))).collect();
    std::future::poll_fn(|context| {
        for place in &mut pending {
            if let Some(future) = place
                && let Poll::Ready(outcome) = future.as_mut().poll(context)
            {
                *place = None;
                outcome?;
            }
        }
        if pending.iter().all(Option::is_none) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}
