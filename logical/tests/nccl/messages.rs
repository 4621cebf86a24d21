//! Messages, which are staged where NCCL carries the collectives.

use super::ranks::{TRANSPORTS, buffer, gives_what_the_host_gives, numbers, on_gpus};
use hexagram_logical::codec::{Keep, MinMax8, RandomK};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::spawn;
use hexagram_logical::{Buffer, Communicator, Queue, ReduceOp, Result, TransportKind};

/// Primitives that have no native collective, or have groups of their own.
fn primitives(comm: &Communicator, queue: &Queue, len: usize) -> Result<Vec<Vec<f32>>> {
    let ranks = comm.size();
    let make = |len| buffer(queue, &numbers(comm.rank(), len));
    let mut results = Vec::new();
    let mut keep = |buffer: &Buffer| -> Result<()> {
        results.push(buffer.host::<f32>()?.to_vec());
        Ok(())
    };
    let mut least = make(len);
    comm.block_on(comm.all_reduce(&mut least, ReduceOp::Min))?;
    keep(&least)?;
    let blocks = make(len * ranks);
    let mut transposed = make(len * ranks);
    comm.block_on(comm.all_to_all(&blocks, &mut transposed))?;
    keep(&transposed)?;
    let mut reduced = make(len);
    comm.block_on(comm.reduce(&mut reduced, ReduceOp::Sum, ranks - 1))?;
    keep(&reduced)?;
    if let Some(half) = comm.block_on(comm.split(Some(comm.rank() as u32 % 2), 0))? {
        let mut sum = make(len);
        half.block_on(half.all_reduce(&mut sum, ReduceOp::Sum))?;
        keep(&sum)?;
    }
    let mut encoded = make(len);
    let mut encoding = Encoding::new(std::sync::Arc::new(MinMax8::default()));
    comm.block_on(comm.all_reduce_encoded(&mut encoded, ReduceOp::Sum, &mut encoding))?;
    keep(&encoded)?;
    let mut reduced = make(len);
    let codec = RandomK::new(Keep::Ratio(0.3))?;
    let mut encoding = Encoding::linear(std::sync::Arc::new(codec)).with_feedback(Feedback::Error);
    for _ in 0..2 {
        comm.block_on(comm.all_reduce_linear(&mut reduced, ReduceOp::Sum, &mut encoding))?;
    }
    keep(&reduced)?;
    Ok(results)
}

#[test]
fn primitives_have_the_results_of_the_host() {
    for (ranks, len) in [(1, 300), (2, 300), (3, 20_011), (4, 1)] {
        let run = |comm: &Communicator, queue: &Queue| primitives(comm, queue, len);
        let transports = if ranks == 3 { &TRANSPORTS[..] } else { &TRANSPORTS[..1] };
        gives_what_the_host_gives(transports, ranks, run);
    }
}

/// What ranks agree on by the host is no payload.
#[test]
fn the_payload_is_that_of_the_host() {
    let run = |comm: &Communicator, queue: &Queue| {
        // Neither of the two attaches meanwhile.
        let before = comm.world().traffic().payload_sent();
        primitives(comm, queue, 20_012)?;
        let mut mean = buffer(queue, &numbers(comm.rank(), 100_000));
        comm.block_on(comm.all_reduce(&mut mean, ReduceOp::Mean))?;
        comm.block_on(comm.broadcast(&mut mean, 1))?;
        Ok(comm.world().traffic().payload_sent() - before)
    };
    let want = spawn(TransportKind::Thread, 4, |comm| run(&comm, &Queue::host())).unwrap();
    for (rank, got) in on_gpus(TransportKind::Thread, 4, run).into_iter().enumerate() {
        assert_eq!(got, want[rank], "rank {rank}");
    }
}
