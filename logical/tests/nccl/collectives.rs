//! Collectives: the host's results, exactly where sums are exact, whatever the transport beside NCCL.

use super::ranks::{TRANSPORTS, buffer, gives_what_the_host_gives, number, numbers, on_gpus, together};
use half::{bf16, f16};
use hexagram_logical::{Bool, Buffer, Communicator, DType, Element, Queue, ReduceOp, Result, TransportKind};
use std::future::Future;
use std::pin::Pin;

const RANKS: [usize; 4] = [1, 2, 3, 4];
const LENGTHS: [usize; 2] = [1, 10_007];

fn bytes<T: Element>(buffer: &Buffer) -> Vec<u8> {
    bytemuck::cast_slice(&buffer.host::<T>().unwrap()).to_vec()
}

/// Returns the results of all collectives on this rank, for all reductions that are exact on these numbers.
fn all<T: Element>(comm: &Communicator, queue: &Queue, of: fn(i64) -> T, len: usize) -> Result<Vec<Vec<u8>>> {
    let ranks = comm.size();
    let make = |len: usize| {
        let mine: Vec<T> = (0..len).map(|at| of(number(comm.rank(), at) * ranks as i64)).collect();
        buffer(queue, &mine)
    };
    let mut results = Vec::new();
    let has = |op: ReduceOp| match op {
        // Thirds are not exact.
        ReduceOp::Mean => T::DTYPE.is_float() && (ranks != 3 || T::DTYPE.is_half()),
        ReduceOp::Product => T::DTYPE.size() > 2 || !T::DTYPE.is_float(),
        _ => op.check(T::DTYPE).is_ok(),
    };
    for op in ReduceOp::ALL.into_iter().filter(|op| has(*op)) {
        let mut whole = make(len);
        comm.block_on(comm.all_reduce(&mut whole, op))?;
        results.push(bytes::<T>(&whole));
        let blocks = make(len * ranks);
        let mut block = make(len);
        comm.block_on(comm.reduce_scatter(&blocks, &mut block, op))?;
        results.push(bytes::<T>(&block));
    }
    let block = make(len);
    let mut blocks = make(len * ranks);
    comm.block_on(comm.all_gather(&block, &mut blocks))?;
    results.push(bytes::<T>(&blocks));
    for root in 0..ranks {
        let mut whole = make(len);
        comm.block_on(comm.broadcast(&mut whole, root))?;
        results.push(bytes::<T>(&whole));
    }
    comm.block_on(comm.barrier())?;
    Ok(results)
}

#[track_caller]
fn same_as_on_host<T: Element>(of: fn(i64) -> T) {
    // Types differ in what is enqueued, transports and numbers of ranks in what comes before.
    let is_one_of_all = T::DTYPE != DType::F32;
    for ranks in RANKS.into_iter().filter(|ranks| !is_one_of_all || *ranks == 3) {
        let run = |comm: &Communicator, queue: &Queue| -> Result<Vec<_>> {
            LENGTHS.into_iter().chain([0]).map(|len| all(comm, queue, of, len)).collect()
        };
        let transports = if is_one_of_all { &TRANSPORTS[..1] } else { &TRANSPORTS[..] };
        gives_what_the_host_gives(transports, ranks, run);
    }
}

#[test]
fn results_are_those_of_the_host_for_integers() {
    same_as_on_host::<u8>(|x| x as u8);
    same_as_on_host::<i8>(|x| x as i8);
    same_as_on_host::<i16>(|x| x as i16);
    same_as_on_host::<i32>(|x| x as i32);
    same_as_on_host::<i64>(|x| x);
    same_as_on_host::<Bool>(|x| Bool::from(x & 1 == 1));
}

#[test]
fn results_are_those_of_the_host_for_floats() {
    same_as_on_host::<f16>(|x| f16::from_f64(x as f64));
    same_as_on_host::<bf16>(|x| bf16::from_f64(x as f64));
    same_as_on_host::<f32>(|x| x as f32);
    same_as_on_host::<f64>(|x| x as f64);
}

#[test]
fn a_nan_is_the_one_of_all_reductions() {
    let bits = |comm: &Communicator, queue: &Queue| {
        let odd = f32::from_bits(0xffc0_1234);
        let mut x = buffer(queue, &[if comm.rank() == 0 { odd } else { 1.0 }, 1.0]);
        comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum))?;
        Ok(x.host::<f32>()?.iter().map(|x| x.to_bits()).collect::<Vec<u32>>())
    };
    for got in on_gpus(TransportKind::Thread, 2, bits) {
        assert_eq!(got, [f32::NAN.to_bits(), 2f32.to_bits()]);
    }
}

/// Collectives by NCCL are called in one order, those by messages in any.
#[test]
fn lanes_overlap() {
    let sums = |comm: &Communicator, queue: &Queue| {
        let lanes: Vec<Communicator> = (0..6).map(|lane| comm.lane(lane)).collect();
        let mut buffers: Vec<Buffer> =
            (0..6).map(|lane| buffer(queue, &numbers(comm.rank() + lane, 100))).collect();
        for round in 0..3 {
            let reduce = |(lane, buffer)| Communicator::all_reduce(lane, buffer, ReduceOp::Max);
            let sum = |(lane, buffer)| Communicator::all_reduce(lane, buffer, ReduceOp::Sum);
            let (first, second) = buffers.split_at_mut(3);
            let mut by_messages: Vec<_> = lanes[..3].iter().zip(first).map(reduce).collect();
            let native: Vec<_> = lanes[3..].iter().zip(second).map(sum).collect();
            by_messages.rotate_left((comm.rank() + round) % 3);
            comm.block_on(async {
                let all = [
                    Box::pin(together(by_messages)) as Pin<Box<dyn Future<Output = _>>>,
                    Box::pin(together(native)),
                ];
                together(all.into_iter().collect()).await
            })?;
        }
        buffers.iter().map(|buffer| Ok(buffer.host::<f32>()?.to_vec())).collect::<Result<Vec<_>>>()
    };
    for transport in TRANSPORTS {
        let got = on_gpus(transport, 3, sums);
        for rank in &got {
            assert!(*rank == got[0], "{transport}");
            let at = |rank: usize, at: usize| number(rank, at) as f32;
            let greatest = |i| (0..3).map(|rank| at(rank, i)).fold(0.0, f32::max);
            let sum = |i| 9.0 * (0..3).map(|rank| at(rank + 3, i)).sum::<f32>();
            assert_eq!(rank[0], (0..100).map(greatest).collect::<Vec<_>>());
            assert_eq!(rank[3], (0..100).map(sum).collect::<Vec<_>>());
        }
    }
}

#[test]
fn two_communicators_of_a_gpu_do_not_stop_each_other() {
    let sums = |comm: &Communicator, queue: &Queue| {
        let world = comm.world().clone();
        let beside = std::thread::spawn(move || -> Result<Vec<f32>> {
            let comm = Communicator::open(&world, 1)?;
            let queue = hexagram_physical::device::cuda::Cuda::new(comm.rank())?.queue()?;
            assert_eq!(comm.attach(&queue)?, Some(TransportKind::Nccl));
            repeated(&comm, &queue)
        });
        let mine = repeated(comm, queue)?;
        Ok([mine, beside.join().unwrap()?])
    };
    for rank in on_gpus(TransportKind::Shm, 2, sums) {
        let sum = |at: usize| 16.0 * (number(0, at) + number(1, at)) as f32;
        let want: Vec<f32> = (0..1000).map(sum).collect();
        assert!(rank.iter().all(|got| *got == want));
    }
}

fn repeated(comm: &Communicator, queue: &Queue) -> Result<Vec<f32>> {
    let mut x = buffer(queue, &numbers(comm.rank(), 1000));
    for _ in 0..5 {
        comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum))?;
    }
    Ok(x.host::<f32>()?.to_vec())
}

#[test]
fn bytes_are_counted_by_path() {
    const LEN: usize = 1 << 16;
    let counted = |comm: &Communicator, queue: &Queue| {
        let mut x = buffer(queue, &numbers(comm.rank(), LEN));
        let traffic = comm.world().traffic();
        let all = traffic.bytes_sent();
        comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum))?;
        let by_path = traffic.bytes_sent_by(TransportKind::Nccl);
        Ok((by_path, traffic.bytes_sent() - all - by_path))
    };
    for (by_path, by_host) in on_gpus(TransportKind::Shm, 4, counted) {
        assert_eq!(by_path, 2 * 3 * LEN as u64);
        assert!((1..1000).contains(&by_host), "{by_host} bytes of agreement");
    }
}
