//! Bytes sent, against the formulas on the primitives' pages.

use super::codecs::{Half as EverySecond, Largest};
use hexagram_logical::centralized::encoded::Segments;
use hexagram_logical::codec::Half;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{cases, spawn};
use hexagram_logical::{Communicator, HEADER_BYTES, ReduceOp, Result};
use std::sync::Arc;

/// Compares the bytes of every rank in `operation` with `formula` for that rank and number of ranks.
fn sends(
    formula: impl Fn(usize, usize) -> usize + Sync,
    operation: impl Fn(&Communicator) -> Result<()> + Sync,
) {
    for (transport, ranks) in cases(&super::RANKS) {
        let run = |comm: Communicator| {
            let before = comm.world().traffic().bytes_sent();
            operation(&comm)?;
            // MPI counts its input, which is the same.
            let sent = comm.world().traffic().bytes_sent() - before;
            assert_eq!(sent, formula(comm.rank(), ranks) as u64, "{transport} × {ranks}");
            Ok(())
        };
        spawn(transport, ranks, run).unwrap();
    }
}

/// Of a scatter-gather where `bytes` is the size of the message for a number of elements.
fn scatter_gather(len: usize, rank: usize, ranks: usize, bytes: impl Fn(usize) -> usize) -> usize {
    let segments = Segments::of(len, ranks);
    let of = |owner: usize| -> usize {
        (0..segments.count()).map(|index| bytes(segments.range(owner, index).len())).sum()
    };
    let said: usize = (0..ranks).filter(|owner| *owner != rank).map(of).sum();
    said + (ranks - 1) * of(rank) + 2 * (ranks - 1) * segments.count() * HEADER_BYTES
}

#[test]
fn scatter_gather_sends_each_chunk_there_and_back() {
    for (len, feedback) in
        [(1001, Feedback::TwoLevel), (1001, Feedback::Difference), (300_000, Feedback::None)]
    {
        let run = |comm: &Communicator| {
            let mut encoding = Encoding::new(Arc::new(Half::F16)).with_feedback(feedback);
            comm.blocking().all_reduce_encoded(&mut vec![1.0; len], ReduceOp::Mean, &mut encoding)
        };
        sends(|rank, ranks| scatter_gather(len, rank, ranks, |elements| 2 * elements), run);
    }
    // About 2(n−1)/n · S/2, as documented.
    let headers = 6 * HEADER_BYTES;
    let size = 2 * 4000;
    assert_eq!(scatter_gather(4000, 0, 4, |elements| 2 * elements), 6 * size / 4 + headers);
}

#[test]
fn a_vote_sends_bits() {
    let len = 300_001;
    sends(
        |rank, ranks| scatter_gather(len, rank, ranks, |elements| elements.div_ceil(8)),
        |comm| comm.blocking().majority_vote(&mut vec![1.0; len]),
    );
}

#[test]
fn sparse_messages_go_to_everyone_once_at_their_own_size() {
    // Rank r has r numbers that are not 0, and 5 are kept.
    sends(
        |rank, ranks| (ranks - 1) * (8 * rank.min(5) + HEADER_BYTES),
        |comm| {
            let mut mine: Vec<f32> = (0..100).map(|at| f32::from(u8::from(at < comm.rank()))).collect();
            let mut encoding = Encoding::new(Arc::new(Largest(5))).with_feedback(Feedback::Error);
            comm.blocking().all_reduce_sparse(&mut mine, ReduceOp::Sum, &mut encoding)
        },
    );
}

#[test]
fn a_linear_codec_sends_what_its_all_reduces_send() {
    let len = 10_000;
    for (transport, ranks) in cases(&super::RANKS) {
        let run = |comm: Communicator| {
            let sent = || comm.world().traffic().bytes_sent();
            let start = sent();
            comm.blocking().all_reduce(&mut [1f32], ReduceOp::Sum)?;
            comm.blocking().all_reduce(&mut vec![1f32; len / 2], ReduceOp::Sum)?;
            let plain = sent() - start;
            let start = sent();
            let mut encoding = Encoding::linear(Arc::new(EverySecond));
            comm.blocking().all_reduce_linear(&mut vec![1.0; len], ReduceOp::Sum, &mut encoding)?;
            assert_eq!(sent() - start, plain, "{transport} × {ranks}");
            assert!(plain > 0 || ranks == 1 || transport.to_string() == "mpi");
            Ok(())
        };
        spawn(transport, ranks, run).unwrap();
    }
}
