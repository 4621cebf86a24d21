//! ByteGrad against the encoded all-reduce, and against full precision.

use super::{MINIMUM, converged};
use hexagram_algorithms::bytegrad::ByteGrad;
use hexagram_algorithms::logical::codec::MinMax8;
use hexagram_algorithms::logical::encoding::Encoding;
use hexagram_algorithms::logical::testing::{Reference, cases, spawn};
use hexagram_algorithms::logical::{Communicator, Error, ReduceOp, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer, payload_per_step};
use std::sync::{Arc, Barrier};

/// Elements of the test model: neither whole blocks nor equal chunks.
const ELEMENTS: usize = 5003;

fn gradient(rank: usize, step: usize, at: usize) -> f32 {
    (((at * 7 + rank * 31 + step * 13) % 101) as f32 - 50.0) * (1.0 + at as f32 / 1000.0)
}

#[test]
fn its_steps_are_those_of_the_reference_bit_for_bit() {
    let block = 256;
    for (transport, ranks) in cases(&[1, 3, 4]) {
        let run = |comm: Communicator| {
            let algorithm = Arc::new(ByteGrad::in_blocks(block));
            let setup = Setup { learning_rate: 0.5, ..Setup::default() };
            let mut trainer = Trainer::new(&comm, algorithm, setup, &[vec![1.0f32; ELEMENTS]])?;
            for step in 0..3 {
                trainer.step(|_, x| (0..x.len()).map(|at| gradient(comm.rank(), step, at)).collect())?;
            }
            Ok(trainer.parameters()?.remove(0))
        };
        let found = spawn(transport, ranks, run).unwrap();
        let encoding = Encoding::new(Arc::new(MinMax8::in_blocks(block)));
        let mut reference = Reference::new(&encoding, ranks, ELEMENTS, ReduceOp::Mean);
        let mut expected = vec![1.0f32; ELEMENTS];
        for step in 0..3 {
            let mean = reference
                .all_reduce_encoded(|rank, range| range.map(|at| gradient(rank, step, at)).collect())
                .unwrap();
            expected.iter_mut().zip(mean).for_each(|(x, mean)| *x -= 0.5 * mean);
        }
        for (rank, found) in found.iter().enumerate() {
            assert!(*found == expected, "rank {rank} of {ranks}, over {transport}");
        }
    }
}

#[test]
fn it_reaches_the_minimum_that_full_precision_reaches() {
    for x in converged(&[0; 4], false, ByteGrad::default(), 200, |_| 0.1).concat() {
        // As all elements converge, so do the ranges to which their error is relative.
        assert!((x - MINIMUM).abs() < 1e-4, "{x}");
    }
}

#[test]
fn what_it_cannot_do_is_said_on_every_rank() {
    let begun = Barrier::new(2);
    let refused = spawn(TransportKind::Thread, 2, |comm| {
        let mut trainer = Trainer::new(&comm, ByteGrad::default(), Setup::default(), &[vec![1.0f64; 3]])?;
        begun.wait();
        Ok(trainer.engine().initial().prepare().unwrap_err())
    });
    for error in refused.unwrap() {
        assert!(error.to_string().contains("gradients of f64"), "{error}");
    }
    let error = payload_per_step(2, 8, 1, || ByteGrad::in_blocks(0)).unwrap_err().to_string();
    assert!(error.contains("block of bytegrad is 0; choose a whole number, 1 or more"), "{error}");
}

#[test]
fn a_gradient_that_is_no_number_is_named() {
    let begun = Barrier::new(2);
    let errors = spawn(TransportKind::Thread, 2, |comm| {
        let mut trainer =
            Trainer::new(&comm, Arc::new(ByteGrad::default()), Setup::default(), &[vec![1.0f32; 9]])?;
        trainer.engine().initial().prepare()?;
        begun.wait();
        let bad = |rank, at| if rank == 1 && at == 4 { f32::NAN } else { 1.0 };
        let mut step = || trainer.step(|_, x| (0..x.len()).map(|at| bad(comm.rank(), at)).collect());
        // If ranks read each other's memory, an error is known one step later.
        Ok((0..3).try_for_each(|_| step()).unwrap_err())
    })
    .unwrap();
    let is_told_by_device = errors[1].to_string().contains("on cuda:0: element 4 is NaN");
    assert!(matches!(&errors[1], Error::NotFinite { index: 4, .. }) || is_told_by_device, "{}", errors[1]);
    let reason = if is_told_by_device { "rank 1" } else { "NaN on rank 1" };
    assert!(errors[0].to_string().contains(reason), "{}", errors[0]);
}
