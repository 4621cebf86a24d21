//! Messages: in any order of sends and receives, of any size, to everyone.

use super::ranks::{TRANSPORTS, buffer, gives_what_the_host_gives, numbers, on_gpus, together};
use hexagram_logical::codec::{Keep, MinMax8, RandomK, TopK};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::spawn;
use hexagram_logical::{Buffer, Communicator, DType, Queue, ReduceOp, Result, TransportKind};
use hexagram_physical::codec::{Codec, CodecError, Noise, Properties};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::transport::Land;

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

#[test]
fn messages_have_the_size_that_their_sender_knows() {
    let run = |comm: &Communicator, queue: &Queue| {
        let mut x = buffer(queue, &numbers(comm.rank(), 5000));
        let mut encoding = Encoding::new(std::sync::Arc::new(TopK::default()));
        comm.block_on(comm.all_reduce_sparse(&mut x, ReduceOp::Sum, &mut encoding))?;
        Ok(x.host::<f32>()?.to_vec())
    };
    gives_what_the_host_gives(&[TransportKind::Shm], 3, run);
}

/// Sends every number as it is, and has no kernel: the host encodes and decodes, which waits for the GPU.
#[derive(Debug)]
struct OnHost;

impl Codec for OnHost {
    fn name(&self) -> String {
        "on-host".to_owned()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: true, contraction: None, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        4 * len
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _seed: u64) -> Result<usize, CodecError> {
        to[..4 * from.len()].copy_from_slice(bytemuck::cast_slice(from));
        Ok(4 * from.len())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        let numbers = from.chunks_exact(4).map(bytemuck::pod_read_unaligned::<f32>);
        to.iter_mut().zip(numbers).for_each(|(x, number)| *x += weight * number);
        Ok(())
    }
}

#[test]
fn a_thread_that_waits_for_its_gpu_stops_nobody() {
    let run = |comm: &Communicator, queue: &Queue| {
        let lanes: Vec<Communicator> = (0..3).map(|lane| comm.lane(lane)).collect();
        let mut buffers: Vec<Buffer> =
            (0..3).map(|at| buffer(queue, &numbers(comm.rank() + at, 3000))).collect();
        let reduce = async |lane: &Communicator, buffer: &mut Buffer| {
            let mut encoding = Encoding::new(std::sync::Arc::new(OnHost));
            lane.all_reduce_encoded(buffer, ReduceOp::Sum, &mut encoding).await
        };
        let all = lanes.iter().zip(&mut buffers).map(|(lane, buffer)| reduce(lane, buffer)).collect();
        comm.block_on(together(all))?;
        buffers.iter().map(|buffer| Ok(buffer.host::<f32>()?.to_vec())).collect::<Result<Vec<_>>>()
    };
    gives_what_the_host_gives(&[TransportKind::Thread, TransportKind::Tcp], 3, run);
}

#[test]
fn receives_may_wait_for_what_is_sent_last() {
    let run = |comm: &Communicator, queue: &Queue| {
        let other = 1 - comm.rank();
        let sent: Vec<Buffer> =
            (0..5).map(|at| buffer(queue, &[(10 * comm.rank() + at) as f32; 1000])).collect();
        let mut got: Vec<Buffer> = (0..5).map(|_| buffer(queue, &[0f32; 1000])).collect();
        comm.block_on(async {
            for (out, into) in sent.iter().zip(&mut got) {
                // Rank 0 sends first, rank 1 receives first.
                if comm.rank() == 0 {
                    comm.send(out, other).await?;
                    comm.recv(into, other).await?;
                } else {
                    comm.recv(into, other).await?;
                    comm.send(out, other).await?;
                }
            }
            Ok::<(), hexagram_logical::Error>(())
        })?;
        got.iter().map(|got| Ok(got.host::<f32>()?[999])).collect::<Result<Vec<f32>>>()
    };
    for transport in TRANSPORTS {
        for (rank, got) in on_gpus(transport, 2, run).into_iter().enumerate() {
            let want: Vec<f32> = (0..5).map(|at| (10 * (1 - rank) + at) as f32).collect();
            assert_eq!(got, want, "{transport}");
        }
    }
}

/// Sends and receives of many steps are posted at once, to and from every rank, oneself among them: more than go into one
/// group of NCCL's.
#[test]
fn many_messages_are_under_way_at_once_to_oneself_too() {
    const STEPS: usize = 6;
    let run = |comm: &Communicator, queue: &Queue| {
        let len = STEPS * comm.size();
        let sent: Vec<f32> = (0..len).map(|at| (100 * comm.rank() + at) as f32).collect();
        let sent = buffer(queue, &sent);
        let got = buffer(queue, &vec![0f32; len]);
        let fingerprint = Fingerprint::new(OperationKind::AllToAll, DType::F32, 1);
        comm.block_on(comm.operate(fingerprint, async |call| {
            let mut under_way = Vec::new();
            for step in 0..STEPS {
                for peer in 0..comm.size() {
                    let at = step * comm.size() + peer;
                    under_way.push(call.send(peer, step, &sent, at..at + 1)?);
                    under_way.push(call.recv(peer, step, &got, at..at + 1, Land::Copy)?);
                }
            }
            for one in under_way {
                one.await?;
            }
            Ok(())
        }))?;
        Ok(got.host::<f32>()?.to_vec())
    };
    for ranks in [1, 3] {
        for (rank, got) in on_gpus(TransportKind::Shm, ranks, run).into_iter().enumerate() {
            // Rank p sends what stands at this rank's place of each step.
            let from = |at: usize| (100 * (at % ranks) + at / ranks * ranks + rank) as f32;
            let want: Vec<f32> = (0..STEPS * ranks).map(from).collect();
            assert_eq!(got, want, "{ranks} ranks, rank {rank}");
        }
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
