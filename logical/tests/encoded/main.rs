//! The centralized primitives in low precision: equal to what [`Reference`] computes in one place, bit for bit and so on
//! all ranks, whatever the codec, the feedback, the size and the transport; with the bytes that their pages promise.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod bytes;
mod codecs;
mod failures;
mod feedback;
mod linear;
mod vote;

use codecs::{Dithered, Largest};
use hexagram_logical::codec::{Codec, Half};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{Reference, cases, spawn};
use hexagram_logical::{Buffer, Communicator, ReduceOp, Result};
use std::sync::Arc;

const RANKS: [usize; 5] = [1, 2, 3, 4, 8];
/// None, one, fewer than ranks, and odd.
const LENGTHS: [usize; 4] = [0, 1, 3, 1001];

/// Runs `test` on every transport and number of ranks.
fn matrix(test: impl Fn(&Communicator) -> Result<()> + Sync) {
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, |comm| test(&comm)).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}

/// What a rank has at an element: numbers of different sizes and signs, some of them zero.
fn value(rank: usize, step: usize, at: usize) -> f32 {
    let hash = (at * 2_654_435_761 + rank * 40_503 + step * 97_003) % 1013;
    if hash.is_multiple_of(11) { 0.0 } else { (hash as f32 - 500.0) / (3.0 + (at % 7) as f32) }
}

fn contribution(rank: usize, step: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    range.map(|at| value(rank, step, at)).collect()
}

fn codecs() -> [Arc<dyn Codec>; 4] {
    [Arc::new(Half::F16), Arc::new(Half::BF16), Arc::new(Dithered), Arc::new(Largest(40))]
}

/// So that signs of zeros count, too.
fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Some steps of an operation on one bucket, each compared with the reference.
fn scatter_gather(
    comm: &Communicator,
    mut encoding: Encoding,
    (len, op): (usize, ReduceOp),
    steps: usize,
) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let mut reference = Reference::new(&encoding, size, len, op);
    for step in 0..steps {
        let mut buffer = Buffer::from_slice(&contribution(rank, step, 0..len))?;
        comm.block_on(comm.all_reduce_encoded(&mut buffer, op, &mut encoding))?;
        let expected = reference.all_reduce_encoded(|rank, range| contribution(rank, step, range))?;
        assert_eq!(
            bits(&buffer.host::<f32>()?),
            bits(&expected),
            "{encoding:?}, {len} elements, step {step}"
        );
    }
    Ok(())
}

#[test]
fn scatter_gather_is_the_reference_bit_for_bit() {
    matrix(|comm| {
        for codec in codecs() {
            for feedback in [Feedback::None, Feedback::Error, Feedback::TwoLevel, Feedback::Difference] {
                for (len, op) in LENGTHS.into_iter().zip([ReduceOp::Sum, ReduceOp::Mean].into_iter().cycle())
                {
                    let encoding = Encoding::new(codec.clone()).with_feedback(feedback).with_seed(7);
                    scatter_gather(comm, encoding, (len, op), 3)?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn many_segments_are_the_reference_too() {
    // Seven segments a chunk, more than are under way at a time; the last one has 5 elements or 6.
    let len = 2 * 6 * 65_536 + 11;
    for (transport, ranks) in cases(&[2]) {
        let run = |comm: Communicator| {
            let encoding = Encoding::new(Arc::new(Dithered)).with_feedback(Feedback::TwoLevel);
            scatter_gather(&comm, encoding, (len, ReduceOp::Mean), 1)
        };
        spawn(transport, ranks, run).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}

#[test]
fn sparse_messages_are_the_reference_bit_for_bit() {
    matrix(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for codec in codecs() {
            for feedback in [Feedback::None, Feedback::Error, Feedback::Difference] {
                for (len, op) in LENGTHS.into_iter().zip([ReduceOp::Mean, ReduceOp::Sum].into_iter().cycle())
                {
                    let mut encoding = Encoding::new(codec.clone()).with_feedback(feedback).with_seed(8);
                    let mut reference = Reference::new(&encoding, size, len, op);
                    for step in 0..3 {
                        let mut mine = contribution(rank, step, 0..len);
                        comm.blocking().all_reduce_sparse(&mut mine, op, &mut encoding)?;
                        let expected =
                            reference.all_reduce_sparse(|rank| contribution(rank, step, 0..len))?;
                        assert_eq!(bits(&mine), bits(&expected), "{encoding:?}, {len} elements");
                    }
                }
            }
        }
        Ok(())
    });
}
