//! Native collectives of a backend: the same results as by messages, bit for bit, on registered memory and off it.
//! Ranks that disagree get an error, whichever of them used messages.

use hexagram_logical::testing::{self, mappings, spawn};
use hexagram_logical::{
    Bool, Buffer, Communicator, DType, Error, NOTICE_BYTES, ReduceOp, Result, TransportKind,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const RANKS: [usize; 6] = [1, 2, 3, 4, 5, 8];
/// Around the limits: nothing, one element, a board's slot, pieces of a chunk, many pieces.
const LENGTHS: [usize; 8] = [0, 1, 7, 1014, 1015, 16_384 + 3, 150_001, (1 << 20) + 3];

/// Contributions whose sum depends on its order, and that are small integers for integer types.
fn fill(buffer: &mut Buffer, rank: usize) {
    let number = |at: usize| 1.0 / (1 + (at * 13 + rank * 7919) % 1009) as f64;
    let whole = |at: usize| ((at * 5 + rank * 3) % 7) as i64;
    macro_rules! each {
        ($t:ty, $value:expr) => {
            buffer.host_mut::<$t>().unwrap().iter_mut().enumerate().for_each(|(at, x)| *x = $value(at))
        };
    }
    match buffer.dtype() {
        DType::F32 => each!(f32, |at| number(at) as f32),
        DType::F64 => each!(f64, number),
        DType::F16 => each!(half::f16, |at| half::f16::from_f64(number(at))),
        DType::BF16 => each!(half::bf16, |at| half::bf16::from_f64(number(at))),
        DType::U8 => each!(u8, |at| whole(at) as u8),
        DType::I8 => each!(i8, |at| whole(at) as i8),
        DType::I16 => each!(i16, |at| whole(at) as i16),
        DType::Bool => each!(Bool, |at| Bool::from(whole(at) % 2 == 1)),
        DType::I32 => each!(i32, |at| whole(at) as i32),
        DType::I64 => each!(i64, whole),
    }
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let down = Buffer::zeroed(buffer.dtype(), buffer.len()).unwrap();
    down.write_all().unwrap().copy_from(&buffer.read_all().unwrap()).unwrap();
    down.read_all().unwrap().host_bytes().unwrap().to_vec()
}

/// The results of all-reduce, reduce-scatter, all-gather and broadcast on this rank.
fn collectives(
    comm: &Communicator,
    dtype: DType,
    len: usize,
    op: ReduceOp,
    registered: bool,
) -> Result<[Vec<u8>; 4]> {
    let n = comm.size();
    let make = |len| if registered { comm.registered(dtype, len) } else { Ok(testing::zeroed(dtype, len)) };
    let mut whole = make(len)?;
    let mut part = make(len / n)?;
    let mut all = make(len / n * n)?;
    fill(&mut whole, comm.rank());
    comm.block_on(comm.all_reduce(&mut whole, op))?;
    let reduced = bytes(&whole);
    fill(&mut all, comm.rank());
    comm.block_on(comm.reduce_scatter(&all, &mut part, op))?;
    let scattered = bytes(&part);
    fill(&mut part, comm.rank());
    comm.block_on(comm.all_gather(&part, &mut all))?;
    fill(&mut whole, comm.rank());
    comm.block_on(comm.broadcast(&mut whole, n - 1))?;
    Ok([reduced, scattered, bytes(&all), bytes(&whole)])
}

#[test]
fn results_are_those_of_messages_for_every_length_and_number_of_ranks() {
    for n in RANKS {
        for len in LENGTHS {
            let run = |transport, registered| {
                spawn(transport, n, |comm| {
                    // Twice, so that slots and counters are used again.
                    collectives(&comm, DType::F32, len, ReduceOp::Sum, registered)?;
                    collectives(&comm, DType::F32, len, ReduceOp::Sum, registered)
                })
                .unwrap()
            };
            let want = run(TransportKind::Thread, false);
            assert!(want.iter().all(|results| results[0] == want[0][0]), "equal on all ranks");
            for registered in [false, true] {
                let got = run(TransportKind::Shm, registered);
                assert!(got == want, "{n} ranks, {len} elements, registered: {registered}");
            }
        }
    }
}

#[test]
fn results_are_those_of_messages_for_every_type_and_reduction() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.check(dtype).is_ok()) {
            for len in [33, 40_003] {
                let run = |transport, registered| {
                    spawn(transport, 3, |comm| collectives(&comm, dtype, len, op, registered)).unwrap()
                };
                let want = run(TransportKind::Thread, false);
                for registered in [false, true] {
                    assert!(run(TransportKind::Shm, registered) == want, "{dtype} {op} {len} {registered}");
                }
            }
        }
    }
}

#[test]
fn lanes_overlap_in_any_order() {
    spawn(TransportKind::Shm, 3, |comm| {
        let lanes: Vec<Communicator> = (0..40).map(|lane| comm.lane(lane)).collect();
        let mut buffers: Vec<Buffer> =
            (0..40).map(|lane| comm.registered(DType::F32, 1 + lane * 3000).unwrap()).collect();
        for round in 0..5 {
            buffers.iter_mut().for_each(|buffer| fill(buffer, comm.rank()));
            let mut operations: Vec<_> = lanes
                .iter()
                .zip(&mut buffers)
                .map(|(lane, buffer)| Box::pin(lane.all_reduce(buffer, ReduceOp::Sum)))
                .collect();
            // Every rank begins them in a different order.
            operations.rotate_left((comm.rank() * 13 + round) % 40);
            comm.block_on(async {
                let mut pending: Vec<_> = operations.into_iter().map(Some).collect();
                std::future::poll_fn(|context| {
                    for place in &mut pending {
                        if let Some(operation) = place
                            && let std::task::Poll::Ready(outcome) = operation.as_mut().poll(context)
                        {
                            outcome.unwrap();
                            *place = None;
                        }
                    }
                    if pending.iter().all(Option::is_none) { ().into() } else { std::task::Poll::Pending }
                })
                .await;
            });
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn two_operations_of_one_lane_run_one_after_another() {
    let sums = spawn(TransportKind::Shm, 4, |comm| {
        let mut one = testing::buffer(&[1f32]);
        let mut two = testing::buffer(&[10f32]);
        let first = comm.all_reduce(&mut one, ReduceOp::Sum);
        let second = comm.all_reduce(&mut two, ReduceOp::Sum);
        comm.block_on(async {
            let mut first = Box::pin(first);
            let mut second = Box::pin(second);
            let mut done = 0;
            let mut both = [false; 2];
            std::future::poll_fn(|context| {
                for (at, operation) in [&mut first, &mut second].into_iter().enumerate() {
                    if !both[at]
                        && operation.as_mut().poll(context).map(|outcome| outcome.unwrap()).is_ready()
                    {
                        both[at] = true;
                        done += 1;
                    }
                }
                if done == 2 { ().into() } else { std::task::Poll::Pending }
            })
            .await;
        });
        Ok((one.host::<f32>()?[0], two.host::<f32>()?[0]))
    });
    assert_eq!(sums.unwrap(), [(4.0, 40.0); 4]);
}

#[test]
fn bytes_are_counted() {
    const LEN: usize = 840 * 64;
    for n in RANKS {
        let counted = |operation: fn(&Communicator, &mut Buffer) -> Result<()>| {
            let bytes = spawn(TransportKind::Shm, n, |comm| {
                let mut buffer = comm.registered(DType::F32, LEN)?;
                let before = comm.world().traffic().bytes_sent();
                operation(&comm, &mut buffer)?;
                Ok(comm.world().traffic().bytes_sent() - before)
            });
            bytes.unwrap()
        };
        let notice = if n > 1 { (NOTICE_BYTES + 12) as u64 } else { 0 };
        let all_reduce = counted(|comm, buffer| comm.block_on(comm.all_reduce(buffer, ReduceOp::Sum)));
        assert_eq!(all_reduce, vec![(2 * (n - 1) * (LEN * 4) / n) as u64 + notice; n], "{n} ranks");
        let broadcast = counted(|comm, buffer| comm.block_on(comm.broadcast(buffer, 0)));
        assert_eq!(
            broadcast.iter().sum::<u64>(),
            ((n - 1) * LEN * 4) as u64 + n as u64 * notice,
            "{n} ranks"
        );
    }
}

/// Each rank's result when rank 0 calls a different operation than the others.
fn disagree(
    one: impl Fn(&Communicator) -> Result<()> + Sync,
    other: impl Fn(&Communicator) -> Result<()> + Sync,
) -> Vec<Error> {
    // No rank fails while others are still opening their communicators, which would then fail.
    let open = std::sync::Barrier::new(3);
    let outcomes = spawn(TransportKind::Shm, 3, |comm| {
        open.wait();
        let started = std::time::Instant::now();
        let outcome = if comm.rank() == 0 { one(&comm) } else { other(&comm) };
        assert!(started.elapsed().as_secs() < 30, "long before the deadline");
        Ok(outcome.unwrap_err())
    });
    outcomes.unwrap()
}

#[test]
fn disagreement_is_an_error_on_every_rank_with_both_calls() {
    type Call = fn(&Communicator) -> Result<()>;
    let small: Call = |comm| comm.blocking().all_reduce(&mut [1f32; 4], ReduceOp::Sum);
    let shorter: Call = |comm| comm.blocking().all_reduce(&mut [1f32; 3], ReduceOp::Sum);
    let maximum: Call = |comm| comm.blocking().all_reduce(&mut [1f32; 4], ReduceOp::Max);
    let barrier: Call = |comm| comm.blocking().barrier();
    let long: Call = |comm| comm.blocking().all_reduce(&mut [1f32; 9999], ReduceOp::Sum);
    let wait: Call = |comm| comm.blocking().scatter(None, &mut [1f32; 9999], 0);
    let registered: Call = |comm| {
        let mut buffer = comm.registered(DType::F32, 9999)?;
        comm.block_on(comm.all_reduce(&mut buffer, ReduceOp::Sum))
    };
    let not_registered: Call = |comm| {
        let _buffer = comm.registered(DType::F32, 9999)?;
        comm.blocking().all_reduce(&mut [1f32; 9999], ReduceOp::Sum)
    };
    for (one, other) in [
        (small, shorter),
        (small, maximum),
        (barrier, small),
        (small, long),
        (long, small),
        (small, wait),
        (registered, not_registered),
        (not_registered, registered),
    ] {
        let errors = disagree(one, other);
        for error in &errors {
            let text = error.to_string();
            assert!(text.contains("ranks disagree"), "{text}");
            assert!(text.matches('×').count() >= 2, "both calls: {text}");
        }
        assert!(errors.iter().any(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
    }
}

/// Waits until this many threads have arrived.
fn meet(come: &AtomicUsize, all: usize) {
    come.fetch_add(1, Ordering::SeqCst);
    let started = Instant::now();
    while come.load(Ordering::SeqCst) < all {
        assert!(started.elapsed() < Duration::from_secs(60), "somebody does not come");
        std::thread::yield_now();
    }
}

/// Rank 0 gives up an all-reduce after this many polls; the others are in it already or come later.
fn give_up(len: usize, registered: bool, polls: usize, early: bool) {
    let [ready, begin, end] = [0; 3].map(AtomicUsize::new);
    spawn(TransportKind::Shm, 3, |comm| {
        let mut buffer =
            if registered { comm.registered(DType::F32, len)? } else { testing::zeroed(DType::F32, len) };
        fill(&mut buffer, comm.rank());
        // A rank that still registers when rank 0 gives up fails there.
        meet(&ready, 3);
        if comm.rank() > 0 {
            meet(&begin, 3);
            match comm.block_on(comm.all_reduce(&mut buffer, ReduceOp::Sum)) {
                // A few bytes are on rank 0's board already.
                Ok(()) => assert!(len < 10),
                Err(Error::PeerFailed { culprit, cause, .. }) => {
                    assert!(culprit.rank == 0 && cause.contains("was dropped"), "{culprit}: {cause}");
                }
                Err(error) => panic!("{error}"),
            }
            assert!(buffer.host_mut::<f32>().is_ok(), "free here too");
            meet(&end, 3);
            return Ok(());
        }
        early.then(|| meet(&begin, 3));
        let mut operation = Box::pin(comm.all_reduce(&mut buffer, ReduceOp::Sum));
        let mut left = polls;
        comm.block_on(std::future::poll_fn(|context| {
            assert!(operation.as_mut().poll(context).is_pending(), "too short to be given up in the middle");
            left -= 1;
            if left == 0 { ().into() } else { std::task::Poll::Pending }
        }));
        drop(operation);
        buffer.host_mut::<f32>()?.fill(7.0);
        (!early).then(|| meet(&begin, 3));
        meet(&end, 3);
        comm.endpoint().progress();
        assert!(buffer.host::<f32>()?.iter().all(|x| *x == 7.0), "nobody writes late");
        let error = comm.block_on(comm.barrier()).unwrap_err();
        assert!(matches!(error, Error::Poisoned { .. }), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_native_operation_that_is_dropped_frees_its_memory_at_once_and_ends_everyone_s() {
    for registered in [false, true] {
        for len in [0, 7, 100_000] {
            give_up(len, registered, 1, false);
        }
        for polls in [1, 2, 5, 9] {
            give_up(1 << 21, registered, polls, true);
        }
    }
}

#[test]
fn ranks_that_register_different_sizes_hear_of_it() {
    let open = std::sync::Barrier::new(2);
    let errors = spawn(TransportKind::Shm, 2, |comm| {
        open.wait();
        Ok(comm.registered(DType::F32, 100 + comm.rank()).map(drop).unwrap_err().to_string())
    });
    for error in errors.unwrap() {
        assert!(error.contains("400 bytes") && error.contains("404 bytes"), "{error}");
    }
}

#[test]
fn registered_memory_goes_when_its_buffer_goes() {
    // A size that no other test has, as all share the process.
    const PAGES: usize = 331;
    spawn(TransportKind::Shm, 2, |comm| {
        comm.block_on(comm.barrier())?;
        for _ in 0..100 {
            let mut buffer = comm.registered(DType::F32, PAGES * 1024)?;
            comm.block_on(comm.all_reduce(&mut buffer, ReduceOp::Sum))?;
            assert!(mappings(PAGES * 4096) > 0);
        }
        comm.block_on(comm.barrier())?;
        assert_eq!(mappings(PAGES * 4096), 0);
        comm.block_on(comm.barrier())
    })
    .unwrap();
}
