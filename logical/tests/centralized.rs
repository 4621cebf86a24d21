//! Every centralized primitive against its definition: transports × ranks × lengths × element types × reductions, with
//! the bytes that its page promises.

use crate::matrix;
use half::{bf16, f16};
use hexagram_logical::testing::{self, TRANSPORTS, cases, skipped_under_mpi, spawn};
use hexagram_logical::{
    Bool, Communicator, DType, Element, HEADER_BYTES, NOTICE_BYTES, ReduceOp, Result, TransportKind,
};
use hexagram_physical::native::Size;
use std::ops::{BitAnd, BitOr, BitXor};

const RANKS: [usize; 6] = [1, 2, 3, 4, 5, 8];
const LENGTHS: [usize; 5] = [0, 1, 7, 256, 10_007];

/// Small whole numbers, exact in every element type, distinct by rank and position.
fn value(rank: usize, at: usize) -> i64 {
    ((rank * 5 + at * 3) % 7) as i64 - if rank.is_multiple_of(2) { 0 } else { 2 }
}

trait Number: Element {
    fn of(value: i64) -> Self;
}

macro_rules! numbers {
    ($($t:ty => $from:expr),*) => {$(impl Number for $t { fn of(value: i64) -> Self { $from(value) } })*};
}
numbers!(u8 => |v: i64| v as u8, i8 => |v: i64| v as i8, i16 => |v: i64| v as i16, Bool => |v: i64| Bool::from(v & 1 == 1), i32 => |v: i64| v as i32, i64 => |v: i64| v, f32 => |v: i64| v as f32,
    f64 => |v: i64| v as f64, f16 => |v: i64| f16::from_f32(v as f32), bf16 => |v: i64| bf16::from_f32(v as f32));

fn contribution<T: Number>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|at| T::of(value(rank, at))).collect()
}

/// The definition: reduce in i64, which is exact here, and convert.
fn reduced<T: Number>(op: ReduceOp, ranks: usize, len: usize) -> Vec<T> {
    let column = |at: usize| (0..ranks).map(move |rank| value(rank, at));
    let reduce = |at: usize| match op.of(T::DTYPE) {
        ReduceOp::Sum | ReduceOp::Mean => column(at).sum(),
        ReduceOp::Product => column(at).product(),
        ReduceOp::Min => column(at).min().unwrap(),
        ReduceOp::Max => column(at).max().unwrap(),
        // Those of the last bits are the last bits of these.
        ReduceOp::BitAnd => column(at).fold(!0, BitAnd::bitand),
        ReduceOp::BitOr => column(at).fold(0, BitOr::bitor),
        ReduceOp::BitXor => column(at).fold(0, BitXor::bitxor),
    };
    (0..len).map(|at| T::of(reduce(at))).collect()
}

/// Minimum and maximum of unsigned bytes see values modulo 256; the values here are equal in every type. Means have
/// separate tests.
fn ops_for<T: Number>() -> Vec<ReduceOp> {
    let fits = |op: &ReduceOp| op.check(T::DTYPE).is_ok() && *op != ReduceOp::Mean;
    let sees_signs = |op: &ReduceOp| T::DTYPE == DType::U8 && matches!(op, ReduceOp::Min | ReduceOp::Max);
    ReduceOp::ALL.into_iter().filter(|op| fits(op) && !sees_signs(op)).collect()
}

/// Runs a generic test with every element type on every transport and number of ranks.
macro_rules! all_types {
    ($test:ident) => {
        all_types!($test: u8, i8, i16, i32, i64, f16, bf16, f32, f64, Bool)
    };
    ($test:ident: $($t:ty),*) => {{
        let tests: [fn(&Communicator) -> Result<()>; DType::ALL.len()] = [$($test::<$t>),*];
        matrix(&RANKS, |comm| tests.iter().try_for_each(|test| test(comm)));
    }};
}

fn all_reduces<T: Number>(comm: &Communicator) -> Result<()> {
    for op in ops_for::<T>() {
        for len in LENGTHS {
            let mut mine = contribution::<T>(comm.rank(), len);
            comm.blocking().all_reduce(&mut mine, op)?;
            // Products of many ranks leave the exact range of 16-bit floats.
            if !(op == ReduceOp::Product && T::DTYPE.is_half() && comm.size() > 3) {
                assert_eq!(mine, reduced::<T>(op, comm.size(), len), "{op} of {} {}", len, T::DTYPE);
            }
        }
    }
    Ok(())
}

#[test]
fn all_reduce_of_every_type_and_op() {
    all_types!(all_reduces);
}

fn reduces_to_each_root<T: Number>(comm: &Communicator) -> Result<()> {
    for root in 0..comm.size() {
        let mine = contribution::<T>(comm.rank(), 33);
        let mut buffer = mine.clone();
        comm.blocking().reduce(&mut buffer, ReduceOp::Sum, root)?;
        let want = if comm.rank() == root { reduced::<T>(ReduceOp::Sum, comm.size(), 33) } else { mine };
        assert_eq!(buffer, want);
    }
    Ok(())
}

#[test]
fn reduce_changes_the_roots_buffer_only() {
    all_types!(reduces_to_each_root);
}

fn reduce_scatters<T: Number>(comm: &Communicator) -> Result<()> {
    for len in [0, 1, 101] {
        let all = contribution::<T>(comm.rank(), len * comm.size());
        let mut mine = vec![T::of(0); len];
        comm.blocking().reduce_scatter(&all, &mut mine, ReduceOp::Sum)?;
        let want = reduced::<T>(ReduceOp::Sum, comm.size(), len * comm.size());
        assert_eq!(mine, want[len * comm.rank()..][..len]);
        assert_eq!(all, contribution::<T>(comm.rank(), len * comm.size()), "the input is not changed");
    }
    Ok(())
}

#[test]
fn reduce_scatter_of_every_type() {
    all_types!(reduce_scatters);
}

#[test]
fn means_of_floats_are_exact_and_do_not_overflow_in_16_bits() {
    matrix(&RANKS, |comm| {
        // Every rank's value is near the largest f16: their sum overflows.
        let mut large = [f16::from_f32(60_000.0); 3];
        comm.blocking().all_reduce(&mut large, ReduceOp::Mean)?;
        // Each division by n rounds, and so does each sum.
        assert!(large.iter().all(|x| (x.to_f32() / 60_000.0 - 1.0).abs() < 0.004), "{large:?}");
        let mut ranks = [comm.rank() as f64; 5];
        comm.blocking().all_reduce(&mut ranks, ReduceOp::Mean)?;
        assert_eq!(ranks, [(comm.size() - 1) as f64 / 2.0; 5]);
        let all = vec![comm.rank() as f32; comm.size()];
        let mut mine = [0.0];
        comm.blocking().reduce_scatter(&all, &mut mine, ReduceOp::Mean)?;
        assert_eq!(mine, [(comm.size() - 1) as f32 / 2.0]);
        let mut root = [comm.rank() as f32];
        comm.blocking().reduce(&mut root, ReduceOp::Mean, 0)?;
        assert!(comm.rank() != 0 || root == [(comm.size() - 1) as f32 / 2.0]);
        Ok(())
    });
}

#[test]
fn types_have_only_some_reductions() {
    if skipped_under_mpi("it is about calls that send nothing") {
        return;
    }
    spawn(TransportKind::Thread, 2, |comm| {
        for (dtype, op) in DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op))) {
            let mut mine = testing::zeroed(dtype, 2);
            let all = testing::zeroed(dtype, 4);
            let hierarchy = comm.block_on(comm.hierarchy())?;
            let refused = [
                comm.block_on(comm.all_reduce(&mut mine, op)),
                comm.block_on(comm.reduce(&mut mine, op, 0)),
                comm.block_on(comm.reduce_scatter(&all, &mut mine, op)),
                comm.block_on(hierarchy.all_reduce(&mut mine, op)),
                comm.block_on(hierarchy.reduce(&mut mine, op, 0)),
                comm.block_on(hierarchy.reduce_scatter(&all, &mut mine, op)),
            ];
            let is_refused = if dtype.is_float() { op.is_bitwise() } else { op == ReduceOp::Mean };
            let what = format!("{op} is undefined for {dtype}; use ");
            for outcome in refused {
                match outcome {
                    Ok(()) => assert!(!is_refused, "{op} of {dtype}"),
                    Err(error) => assert!(is_refused && error.to_string().starts_with(&what), "{error}"),
                }
            }
        }
        // The refused calls sent nothing, and the communicator still works.
        comm.blocking().barrier()
    })
    .unwrap();
}

#[test]
fn broadcast_from_each_root() {
    matrix(&RANKS, |comm| {
        for root in 0..comm.size() {
            for len in LENGTHS {
                let mut buffer = contribution::<f32>(comm.rank(), len);
                comm.blocking().broadcast(&mut buffer, root)?;
                assert_eq!(buffer, contribution::<f32>(root, len));
            }
        }
        Ok(())
    });
}

#[test]
fn gather_and_scatter_are_inverse() {
    matrix(&RANKS, |comm| {
        let rank = comm.rank();
        let size = comm.size();
        for root in 0..size {
            for len in [0, 1, 19] {
                let mine = contribution::<i64>(rank, len);
                let mut all = vec![0; len * size];
                let at_root = (rank == root).then_some(&mut all[..]);
                comm.blocking().gather(&mine, at_root, root)?;
                if rank == root {
                    let want: Vec<i64> = (0..size).flat_map(|rank| contribution::<i64>(rank, len)).collect();
                    assert_eq!(all, want);
                }
                let mut back = vec![-1; len];
                comm.blocking().scatter((rank == root).then_some(&all[..]), &mut back, root)?;
                assert_eq!(back, mine);
            }
        }
        Ok(())
    });
}

#[test]
fn all_gather_collects_in_rank_order() {
    matrix(&RANKS, |comm| {
        for len in LENGTHS {
            let mut all = vec![f16::ZERO; len * comm.size()];
            comm.blocking().all_gather(&contribution(comm.rank(), len), &mut all)?;
            let want: Vec<f16> = (0..comm.size()).flat_map(|rank| contribution(rank, len)).collect();
            assert_eq!(all, want);
        }
        Ok(())
    });
}

#[test]
fn all_to_all_transposes() {
    matrix(&RANKS, |comm| {
        let rank = comm.rank();
        let size = comm.size();
        for len in [0, 1, 50] {
            let block =
                |from: usize, to: usize| (0..len).map(move |at| (from * 100 + to) as i32 * 1000 + at as i32);
            let sent: Vec<i32> = (0..size).flat_map(|to| block(rank, to)).collect();
            let mut received = vec![0; len * size];
            comm.blocking().all_to_all(&sent, &mut received)?;
            assert_eq!(received, (0..size).flat_map(|from| block(from, rank)).collect::<Vec<_>>());
        }
        Ok(())
    });
}

#[test]
fn all_to_all_with_unequal_counts() {
    matrix(&RANKS, |comm| {
        let rank = comm.rank();
        let size = comm.size();
        let count = |from: usize, to: usize| (from * 3 + to * 2) % 5;
        let block = |from: usize, to: usize| vec![(from * 16 + to) as u8; count(from, to)];
        let sent: Vec<u8> = (0..size).flat_map(|to| block(rank, to)).collect();
        let want: Vec<u8> = (0..size).flat_map(|from| block(from, rank)).collect();
        let send_counts: Vec<usize> = (0..size).map(|to| count(rank, to)).collect();
        let recv_counts: Vec<usize> = (0..size).map(|from| count(from, rank)).collect();
        let mut received = vec![0; want.len()];
        comm.blocking().all_to_all_v(&sent, &send_counts, &mut received, &recv_counts)?;
        assert_eq!(received, want);
        Ok(())
    });
}

#[test]
fn send_and_receive_keep_order_and_are_apart_from_collectives() {
    matrix(&RANKS, |comm| {
        let rank = comm.rank();
        let size = comm.size();
        if size > 1 && rank < 2 {
            // Only two ranks talk; the others' collective counts must not notice.
            let peer = 1 - rank;
            for round in 0..10 {
                if rank == 0 {
                    comm.blocking().send(&[round], peer)?;
                } else {
                    let mut got = [0i32];
                    comm.blocking().recv(&mut got, peer)?;
                    assert_eq!(got, [round]);
                }
            }
        }
        comm.blocking().barrier()
    });
}

#[test]
fn lanes_overlap_in_any_order_without_mixing() {
    matrix(&RANKS, |comm| {
        // Begun in opposite orders on odd and even ranks: on one shared sequence this would mix or hang.
        const LANES: usize = 6;
        let order: Vec<usize> =
            if comm.rank().is_multiple_of(2) { (0..LANES).collect() } else { (0..LANES).rev().collect() };
        for _ in 0..5 {
            let lanes: Vec<_> = order.iter().map(|lane| comm.lane(*lane)).collect();
            let mut buffers: Vec<_> =
                order.iter().map(|lane| testing::buffer(&vec![*lane as f32; 3000])).collect();
            let mut running: Vec<_> = lanes
                .iter()
                .zip(&mut buffers)
                .map(|(lane, buffer)| Box::pin(lane.all_reduce(buffer, ReduceOp::Sum)))
                .collect();
            comm.block_on(std::future::poll_fn(|context| {
                running.retain_mut(|future| match future.as_mut().poll(context) {
                    std::task::Poll::Ready(outcome) => {
                        outcome.unwrap();
                        false
                    }
                    std::task::Poll::Pending => true,
                });
                if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            }));
            drop(running);
            for (lane, buffer) in order.iter().zip(&buffers) {
                let want = (lane * comm.size()) as f32;
                assert!(buffer.host::<f32>().unwrap().iter().all(|x| *x == want));
            }
        }
        Ok(())
    });
}

#[test]
fn results_are_bit_identical_on_all_ranks_and_in_all_runs() {
    if skipped_under_mpi("it compares the transports whose order is fixed") {
        return;
    }
    let run = |transport| {
        spawn(transport, 5, |comm| {
            // Sums whose rounding depends on the order of the terms.
            let mut mine: Vec<f32> =
                (0..9999).map(|at| 1.0 / (1.0 + (at * 13 + comm.rank() * 7919) as f32)).collect();
            comm.blocking().all_reduce(&mut mine, ReduceOp::Sum)?;
            Ok(mine.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        })
        .unwrap()
    };
    let first = run(TransportKind::Thread);
    assert!(first.iter().all(|bits| *bits == first[0]));
    for transport in TRANSPORTS {
        assert!(run(transport) == first, "{transport}");
    }
}

/// Bytes that every rank sends in `operation`, headers included.
fn bytes_of(
    transport: TransportKind,
    ranks: usize,
    operation: impl Fn(&Communicator) -> Result<()> + Sync,
) -> Vec<u64> {
    spawn(transport, ranks, |comm| {
        operation(&comm)?;
        Ok(comm.world().traffic().bytes_sent())
    })
    .unwrap()
}

#[test]
fn all_reduce_sends_what_its_table_says_at_every_size() {
    if skipped_under_mpi("MPI reduces by itself") {
        return;
    }
    for n in RANKS.into_iter().filter(|n| *n > 1) {
        let sent = |len: usize| {
            let bytes = bytes_of(TransportKind::Thread, n, |comm| {
                comm.blocking().all_reduce(&mut vec![1f32; len], ReduceOp::Sum)
            });
            bytes.iter().sum::<u64>()
        };
        let rounds = n.next_power_of_two().ilog2() as usize;
        let small = Size::SMALL / 4 / n;
        assert_eq!(sent(small), (n * ((n - 1) * small * 4 + rounds * HEADER_BYTES)) as u64, "{n} ranks");
        let middle = Size::MIDDLE / 4;
        let core = 1 << n.ilog2();
        let halving = 2 * (core - 1) * middle * 4 + core * 2 * core.ilog2() as usize * HEADER_BYTES;
        let folding = 2 * (n - core) * (middle * 4 + HEADER_BYTES);
        assert_eq!(sent(middle), (halving + folding) as u64, "{n} ranks");
        let large = middle + 1;
        assert_eq!(sent(large), (2 * (n - 1) * (large * 4 + n * HEADER_BYTES)) as u64, "{n} ranks");
    }
}

#[test]
fn all_gather_sends_what_its_table_says_at_every_size() {
    if skipped_under_mpi("MPI gathers by itself") {
        return;
    }
    for n in RANKS.into_iter().filter(|n| *n > 1) {
        let sent = |len: usize| {
            bytes_of(TransportKind::Thread, n, |comm| {
                comm.blocking().all_gather(&vec![1f32; len], &mut vec![0.0; len * comm.size()])
            })
        };
        let each =
            |len: usize, messages: usize| vec![((n - 1) * len * 4 + messages * HEADER_BYTES) as u64; n];
        let runs = if n > 3 { n.next_power_of_two().ilog2() as usize } else { n - 1 };
        let small = Size::SMALL / 4 / n;
        assert_eq!(sent(1), each(1, runs), "{n} ranks");
        assert_eq!(sent(small), each(small, runs), "{n} ranks");
        assert_eq!(sent(small + 1), each(small + 1, n - 1), "{n} ranks");
    }
}

#[test]
fn bytes_sent_are_those_of_the_formulas() {
    if skipped_under_mpi("MPI counts its own bytes") {
        return;
    }
    const LEN: usize = 840 * 128; // divisible by every number of ranks here, and so large that it goes round the ring
    let size = LEN * 4;
    for transport in TRANSPORTS {
        for n in RANKS {
            let header = HEADER_BYTES;
            let each = |want: usize, operation: fn(&Communicator) -> Result<()>| {
                assert_eq!(bytes_of(transport, n, operation), vec![want as u64; n], "{transport} × {n}");
            };
            let in_all = |want: usize, operation: fn(&Communicator) -> Result<()>| {
                assert_eq!(
                    bytes_of(transport, n, operation).iter().sum::<u64>(),
                    want as u64,
                    "{transport} × {n}"
                );
            };
            let rounds = n.next_power_of_two().ilog2() as usize;
            // All ranks of this test are on one host, where a mixed world is one of shared memory.
            let shm = matches!(transport, TransportKind::Shm | TransportKind::Mixed);
            // On shared memory an all-reduce is one post, and reads instead of messages.
            let all_reduce = 2 * (n - 1) * (size / n + if shm { 0 } else { header });
            let notice = if n > 1 { NOTICE_BYTES } else { 0 };
            each(all_reduce + if shm { notice } else { 0 }, |c| {
                c.blocking().all_reduce(&mut [1f32; LEN], ReduceOp::Sum)
            });
            each((n - 1) * (size / n + header), |c| {
                c.blocking().reduce_scatter(&[1f32; LEN], &mut vec![0.0; LEN / c.size()], ReduceOp::Sum)
            });
            each((n - 1) * (size / n + header), |c| {
                c.blocking().all_gather(&vec![1f32; LEN / c.size()], &mut [0.0; LEN])
            });
            each((n - 1) * (size / n + header), |c| c.blocking().all_to_all(&[1f32; LEN], &mut [0.0; LEN]));
            // A message a round, or one post for all.
            let barrier = if shm { notice } else { rounds * header };
            each(barrier, |c| c.blocking().barrier());
            in_all((n - 1) * (size + header), |c| c.blocking().broadcast(&mut [1f32; LEN], c.size() / 2));
            in_all((n - 1) * (size + header), |c| {
                c.blocking().reduce(&mut [1f32; LEN], ReduceOp::Max, c.size() / 2)
            });
            in_all((n - 1) * (size + header), |c| {
                let mut all = vec![0f32; LEN * c.size()];
                c.blocking().gather(&[1f32; LEN], (c.rank() == 0).then_some(&mut all[..]), 0)
            });
            in_all((n - 1) * (size + header), |c| {
                let all = vec![0f32; LEN * c.size()];
                c.blocking().scatter((c.rank() == 0).then_some(&all[..]), &mut [1f32; LEN], 0)
            });
        }
    }
}

#[test]
fn large_results_are_put_together_from_pieces() {
    let len = 1_100_001;
    for (transport, ranks) in cases(&[1, 3]) {
        let outcome = spawn(transport, ranks, |comm| {
            let rank = comm.rank();
            let mut buffer = testing::buffer(&contribution::<f32>(rank, len));
            comm.block_on(comm.reduce(&mut buffer, ReduceOp::Sum, ranks - 1))?;
            let expected: Vec<f32> =
                if rank + 1 == ranks { reduced(ReduceOp::Sum, ranks, len) } else { contribution(rank, len) };
            assert!(*buffer.host::<f32>()? == *expected, "reduce, rank {rank}");

            let all = testing::buffer(&contribution::<f32>(rank, ranks * len));
            let mut mine = testing::zeroed(all.dtype(), len);
            comm.block_on(comm.reduce_scatter(&all, &mut mine, ReduceOp::Sum))?;
            let expected: Vec<f32> = reduced(ReduceOp::Sum, ranks, ranks * len);
            assert!(*mine.host::<f32>()? == expected[rank * len..][..len], "reduce_scatter, rank {rank}");
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{transport} × {ranks}: {error}"));
    }
}
