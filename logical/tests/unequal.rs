//! Blocks of unequal length, of which some or all are empty, and empty buffers: every primitive by its definition, over
//! every transport, with the bytes that its page promises.

use crate::matrix;
use half::f16;
use hexagram_logical::testing::{self, TRANSPORTS, skipped_under_mpi, spawn};
use hexagram_logical::{Buffer, Communicator, DType, Error, HEADER_BYTES, ReduceOp, Result, TransportKind};

const RANKS: [usize; 5] = [1, 2, 3, 4, 7];

/// Counts for this many ranks: none, one, all of one rank, mixed, and one more than a segment of the ring and a piece
/// of a block.
fn all_counts(ranks: usize) -> Vec<Vec<usize>> {
    let of = |count: &dyn Fn(usize) -> usize| (0..ranks).map(count).collect();
    vec![
        of(&|_| 0),
        of(&|_| 1),
        of(&|rank| if rank == 0 { 1003 } else { 0 }),
        of(&|rank| (rank * 5 + 3) % 7),
        of(&|rank| if ranks == 3 && rank == 1 { (4 << 20) + 3 } else { rank }),
    ]
}

/// A rank's contribution at a place.
fn number(rank: usize, at: usize) -> i8 {
    (at * 7 + at / 256 + rank * 13) as i8
}

fn numbers(rank: usize, len: usize) -> Vec<i8> {
    (0..len).map(|at| number(rank, at)).collect()
}

#[test]
fn all_gather_takes_any_counts() {
    matrix(&RANKS, |comm| {
        for counts in all_counts(comm.size()) {
            let mut all = vec![-1; counts.iter().sum()];
            comm.blocking().all_gather_v(&numbers(comm.rank(), counts[comm.rank()]), &mut all, &counts)?;
            let want: Vec<i8> =
                counts.iter().enumerate().flat_map(|(rank, count)| numbers(rank, *count)).collect();
            assert!(all == want, "{counts:?}");
        }
        Ok(())
    });
}

#[test]
fn reduce_scatter_takes_any_counts() {
    matrix(&RANKS, |comm| {
        for counts in all_counts(comm.size()) {
            let all = numbers(comm.rank(), counts.iter().sum());
            let before: usize = counts[..comm.rank()].iter().sum();
            let own = before..before + counts[comm.rank()];
            let reduced = |combine: fn(i8, i8) -> i8| -> Vec<i8> {
                let one = |at| (0..comm.size()).map(|rank| number(rank, at)).reduce(combine).unwrap();
                own.clone().map(one).collect()
            };
            for (op, combine) in [
                (ReduceOp::Sum, i8::wrapping_add as fn(i8, i8) -> i8),
                (ReduceOp::Min, i8::min),
                (ReduceOp::BitXor, |x, y| x ^ y),
            ] {
                if all.len() > 1 << 20 && op != ReduceOp::Sum {
                    continue;
                }
                let mut mine = vec![-1; own.len()];
                comm.blocking().reduce_scatter_v(&all, &counts, &mut mine, op)?;
                assert!(mine == reduced(combine), "{op}, {counts:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn means_of_unequal_blocks_do_not_overflow() {
    matrix(&RANKS, |comm| {
        let counts: Vec<usize> = (0..comm.size()).map(|rank| 3 * rank + 1).collect();
        let large = f16::from_f32(60_000.0);
        let all = vec![large; counts.iter().sum()];
        let mut mine = vec![f16::ZERO; counts[comm.rank()]];
        comm.blocking().reduce_scatter_v(&all, &counts, &mut mine, ReduceOp::Mean)?;
        // Each contribution, and each sum, is rounded.
        assert!(mine.iter().all(|x| (x.to_f32() - 60_000.0).abs() < 300.0), "{mine:?}");
        Ok(())
    });
}

#[test]
fn unequal_blocks_send_what_their_pages_say() {
    if skipped_under_mpi("MPI counts its own bytes") {
        return;
    }
    const COUNTS: [usize; 4] = [100, 0, 7, 1000];
    let sum: usize = COUNTS.iter().sum();
    for transport in TRANSPORTS {
        spawn(transport, COUNTS.len(), |comm| {
            let rank = comm.rank();
            let messages = (COUNTS.len() - 1) * HEADER_BYTES;
            let sent = || comm.world().traffic().bytes_sent() as usize;
            let before = sent();
            comm.blocking().all_gather_v(&numbers(rank, COUNTS[rank]), &mut vec![0; sum], &COUNTS)?;
            assert_eq!(sent() - before, sum - COUNTS[(rank + 1) % COUNTS.len()] + messages, "{transport}");
            let before = sent();
            let mut mine = vec![0; COUNTS[rank]];
            comm.blocking().reduce_scatter_v(&numbers(rank, sum), &COUNTS, &mut mine, ReduceOp::Sum)?;
            assert_eq!(sent() - before, sum - COUNTS[rank] + messages, "{transport}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn counts_that_do_not_fit_are_refused_before_anything_is_sent() {
    if skipped_under_mpi("it is about calls that send nothing") {
        return;
    }
    spawn(TransportKind::Thread, 2, |comm| {
        let blocking = comm.blocking();
        let refused = |outcome: Result<()>, why: &str| {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains(why), "{error}");
        };
        refused(blocking.all_gather_v(&[1f32; 2], &mut [0.0; 4], &[2]), "counts [2] do not divide 4");
        refused(blocking.all_gather_v(&[1f32; 2], &mut [0.0; 4], &[2, 3]), "counts [2, 3] do not divide 4");
        refused(blocking.all_gather_v(&[1f32; 3], &mut [0.0; 4], &[2, 2]), "has 3 elements where the counts");
        refused(blocking.all_gather_v(&[1f32; 2], &mut [0.0; 4], &[usize::MAX, 5]), "do not divide 4");
        let mut mine = [0.0; 2];
        refused(blocking.reduce_scatter_v(&[1f32; 4], &[4, 0], &mut mine, ReduceOp::Sum), "has 2 elements");
        refused(
            blocking.reduce_scatter_v(&[1f32; 4], &[2, 2], &mut mine, ReduceOp::BitOr),
            "bor is undefined for f32",
        );
        blocking.barrier()
    })
    .unwrap();
}

#[test]
fn ranks_that_differ_in_their_counts_hear_of_it() {
    if skipped_under_mpi("a communicator of MPI's that has failed ends all ranks") {
        return;
    }
    for transport in TRANSPORTS {
        let outcome = spawn(transport, 3, |comm| {
            // Equal totals, and each rank passes its own count.
            let counts = if comm.rank() == 2 { [2, 0, 2] } else { [1, 1, 2] };
            let mine = vec![1i16; counts[comm.rank()]];
            let error = comm.blocking().all_gather_v(&mine, &mut [0i16; 4], &counts).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. } | Error::PeerFailed { .. }), "{error}");
            Err::<(), _>(error)
        });
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("all_gather_v(4 × i16, counts #"), "{transport}: {error}");
    }
}

#[test]
fn empty_buffers_are_as_good_as_others() {
    matrix(&RANKS, |comm| {
        for dtype in DType::ALL {
            every_primitive_of_nothing(comm, dtype)?;
        }
        comm.blocking().barrier()
    });
}

/// Calls every primitive with buffers without elements, from each root.
fn every_primitive_of_nothing(comm: &Communicator, dtype: DType) -> Result<()> {
    let one: Buffer = testing::zeroed(dtype, 0);
    let mut other = testing::zeroed(dtype, 0);
    let none = vec![0; comm.size()];
    for op in ReduceOp::ALL.into_iter().filter(|op| op.check(dtype).is_ok()) {
        comm.block_on(comm.all_reduce(&mut other, op))?;
        comm.block_on(comm.reduce_scatter(&one, &mut other, op))?;
        comm.block_on(comm.reduce_scatter_v(&one, &none, &mut other, op))?;
        comm.block_on(comm.reduce(&mut other, op, comm.size() - 1))?;
    }
    for root in 0..comm.size() {
        comm.block_on(comm.broadcast(&mut other, root))?;
        let is_root = comm.rank() == root;
        comm.block_on(comm.gather(&one, is_root.then_some(&mut other), root))?;
        comm.block_on(comm.scatter(is_root.then_some(&one), &mut other, root))?;
    }
    comm.block_on(comm.all_gather(&one, &mut other))?;
    comm.block_on(comm.all_gather_v(&one, &mut other, &none))?;
    comm.block_on(comm.all_to_all(&one, &mut other))?;
    comm.block_on(comm.all_to_all_v(&one, &none, &mut other, &none))?;
    let next = (comm.rank() + 1) % comm.size();
    let previous = (comm.rank() + comm.size() - 1) % comm.size();
    if comm.size() > 1 && comm.rank().is_multiple_of(2) {
        comm.block_on(comm.send(&one, next))?;
    }
    if comm.size() > 1 && previous.is_multiple_of(2) {
        comm.block_on(comm.recv(&mut other, previous))?;
    }
    Ok(())
}
