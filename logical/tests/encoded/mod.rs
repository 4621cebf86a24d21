//! The centralized primitives in low precision. Results equal those of [`Reference`], computed in one place, bit for
//! bit on all ranks, for any codec, feedback, size and transport, and with the documented bytes.

mod bytes;
mod codecs;
mod failures;
mod feedback;
mod linear;
mod vote;

use crate::matrix;
use codecs::{Dithered, Largest};
use hexagram_logical::codec::{Codec, named, names};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{Reference, cases, spawn};
use hexagram_logical::{Communicator, ReduceOp, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const RANKS: [usize; 5] = [1, 2, 3, 4, 8];
/// None, one, fewer than ranks, and odd.
const LENGTHS: [usize; 4] = [0, 1, 3, 1001];

/// The elements of a rank: numbers of different sizes and signs, some of them zero.
fn value(rank: usize, step: usize, at: usize) -> f32 {
    let hash = (at * 2_654_435_761 + rank * 40_503 + step * 97_003) % 1013;
    if hash.is_multiple_of(11) { 0.0 } else { (hash as f32 - 500.0) / (3.0 + (at % 7) as f32) }
}

fn contribution(rank: usize, step: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    range.map(|at| value(rank, step, at)).collect()
}

/// The built-in ones, and those that show a primitive's use of a codec.
fn codecs() -> Vec<Arc<dyn Codec>> {
    let mut all: Vec<Arc<dyn Codec>> = vec![Arc::new(Dithered), Arc::new(Largest(40))];
    all.extend(names().into_iter().map(|name| named(name).unwrap()));
    all.push(named("top-k(10%, chunk=64, bits=2)").unwrap());
    all
}

/// So that signs of zeros count, too.
fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Some steps of one primitive on one bucket.
struct Case {
    sparse: bool,
    codec: Arc<dyn Codec>,
    feedback: Feedback,
    len: usize,
    op: ReduceOp,
    steps: usize,
}

impl Case {
    fn encoding(&self) -> Encoding {
        Encoding::new(self.codec.clone()).with_feedback(self.feedback).with_seed(7)
    }

    /// The result of every step, computed once for all transports and ranks.
    fn expected(&self, ranks: usize) -> Arc<Vec<Vec<u32>>> {
        static KNOWN: Mutex<BTreeMap<String, Arc<Vec<Vec<u32>>>>> = Mutex::new(BTreeMap::new());
        let Case { sparse, codec, feedback, len, op, steps } = self;
        let key = format!("{ranks} {sparse} {} {feedback} {len} {op} {steps}", codec.name());
        let mut known = KNOWN.lock().unwrap();
        let compute = || {
            let mut reference = Reference::new(&self.encoding(), ranks, *len, *op);
            let step = |step| match sparse {
                true => reference.all_reduce_sparse(|rank| contribution(rank, step, 0..*len)),
                false => reference.all_reduce_encoded(|rank, range| contribution(rank, step, range)),
            };
            let results: Vec<Vec<f32>> = (0..*steps).map(step).collect::<Result<_>>().unwrap();
            Arc::new(results.iter().map(|result| bits(result)).collect())
        };
        Arc::clone(known.entry(key).or_insert_with(compute))
    }

    fn run(&self, comm: &Communicator) -> Result<()> {
        let mut encoding = self.encoding();
        for (step, expected) in self.expected(comm.size()).iter().enumerate() {
            let mut mine = contribution(comm.rank(), step, 0..self.len);
            match self.sparse {
                true => comm.blocking().all_reduce_sparse(&mut mine, self.op, &mut encoding)?,
                false => comm.blocking().all_reduce_encoded(&mut mine, self.op, &mut encoding)?,
            }
            assert!(bits(&mine) == *expected, "{encoding:?}, {} elements, step {step}", self.len);
        }
        Ok(())
    }
}

/// Every codec with each feedback and length.
fn all_cases(comm: &Communicator, sparse: bool, feedbacks: &[Feedback]) -> Result<()> {
    let ops = [ReduceOp::Sum, ReduceOp::Mean].into_iter().cycle();
    for codec in codecs() {
        for feedback in feedbacks {
            for (len, op) in LENGTHS.into_iter().zip(ops.clone()) {
                Case { sparse, codec: codec.clone(), feedback: *feedback, len, op, steps: 3 }.run(comm)?;
            }
        }
    }
    Ok(())
}

#[test]
fn scatter_gather_is_the_reference_bit_for_bit() {
    use Feedback::{Decaying, Difference, None, TwoLevel};
    matrix(&RANKS, |comm| all_cases(comm, false, &[None, Decaying(0.7), TwoLevel, Difference]));
}

#[test]
fn sparse_messages_are_the_reference_bit_for_bit() {
    matrix(&RANKS, |comm| all_cases(comm, true, &[Feedback::None, Feedback::Error, Feedback::Difference]));
}

#[test]
fn many_segments_are_the_reference_too() {
    // Seven segments a chunk, more than are in flight at a time; the last one has 5 elements or 6.
    let case = || Case {
        sparse: false,
        codec: Arc::new(Dithered),
        feedback: Feedback::TwoLevel,
        len: 2 * 6 * 65_536 + 11,
        op: ReduceOp::Mean,
        steps: 1,
    };
    for (transport, ranks) in cases(&[2]) {
        let run = |comm: Communicator| case().run(&comm);
        spawn(transport, ranks, run).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}
