//! All-reduce of a linear codec's messages.

use super::codecs::Half;
use super::{RANKS, bits, matrix};
use hexagram_logical::codec::{Keep, LinearCodec, NotFinite, PowerSgd, RandomK};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{queue, skipped_under_mpi, spawn};
use hexagram_logical::{Buffer, Communicator, Error, Queue, ReduceOp, TransportKind};
use std::sync::Arc;

/// Whole numbers, whose sums are exact.
fn value(rank: usize, step: usize, at: usize) -> f32 {
    ((rank * 5 + at * 3 + step) % 13) as f32 - 4.0
}

#[test]
fn rounds_are_reduced_and_memory_is_kept() {
    matrix(&RANKS, |comm| {
        for len in [0, 1, 3, 1001] {
            let mut encoding = Encoding::linear(Arc::new(Half));
            let mut sums = 0.0;
            for step in 0..4 {
                let mut mine: Vec<f32> = (0..len).map(|at| value(comm.rank(), step, at)).collect();
                comm.blocking().all_reduce_linear(&mut mine, ReduceOp::Sum, &mut encoding)?;
                for (at, x) in mine.iter().enumerate() {
                    let sum: f32 = (0..comm.size()).map(|rank| value(rank, step, at)).sum();
                    assert_eq!(*x, if at % 2 == step % 2 { sum } else { 0.0 });
                    sums += sum;
                }
            }
            let memory = encoding.state().entries().find(|(name, _)| *name == "codec").unwrap().1;
            assert_eq!(*memory.host::<f32>()?, [4.0, sums]);
        }
        Ok(())
    });
}

#[test]
fn errors_decay_where_the_feedback_says_so() {
    matrix(&RANKS, |comm| {
        let len = 7;
        let with = |feedback| Encoding::linear(Arc::new(Half)).with_feedback(feedback);
        let mut encoding = with(Feedback::Decaying(0.5));
        // Of all ranks together, as everything is linear.
        let mut error = vec![0.0f64; len];
        for step in 0..4 {
            let mut mine: Vec<f32> = (0..len).map(|at| value(comm.rank(), step, at)).collect();
            comm.blocking().all_reduce_linear(&mut mine, ReduceOp::Sum, &mut encoding)?;
            for (at, error) in error.iter_mut().enumerate() {
                let given = (0..comm.size()).map(|rank| f64::from(value(rank, step, at))).sum::<f64>();
                let total = 0.5 * *error + given;
                let said = if at % 2 == step % 2 { total } else { 0.0 };
                assert!((f64::from(mine[at]) - said).abs() < 1e-4, "{} and not {said}", mine[at]);
                *error = total - said;
            }
        }
        let mut mine = vec![1.0; len];
        let grows = &mut with(Feedback::Decaying(1.5));
        let refused = comm.blocking().all_reduce_linear(&mut mine, ReduceOp::Sum, grows).unwrap_err();
        assert!(refused.to_string().contains("1.5"), "{refused}");
        Ok(())
    });
}

#[test]
fn errors_are_remembered_until_they_are_said() {
    matrix(&RANKS, |comm| {
        let len = 33;
        let size = comm.size();
        let codecs: [Arc<dyn LinearCodec>; 3] = [
            Arc::new(Half),
            Arc::new(RandomK::new(Keep::Count(5))?),
            Arc::new(PowerSgd::new(&[(5, 6), (3, 1)], 1)?),
        ];
        for (codec, op) in
            codecs.iter().flat_map(|codec| [ReduceOp::Sum, ReduceOp::Mean].map(|op| (codec, op)))
        {
            let mut encoding = Encoding::linear(codec.clone()).with_feedback(Feedback::Error).with_seed(5);
            let share = if op == ReduceOp::Mean { 1.0 / size as f64 } else { 1.0 };
            let mut open = vec![0.0f64; len];
            for step in 0..5 {
                let mut mine: Vec<f32> = (0..len).map(|at| value(comm.rank(), step, at)).collect();
                comm.blocking().all_reduce_linear(&mut mine, op, &mut encoding)?;
                let mut replicas = vec![0.0f32; size * len];
                comm.blocking().all_gather(&mine, &mut replicas)?;
                let alike = |other: &[f32]| bits(other) == bits(&mine);
                assert!(replicas.chunks(len).all(alike), "results differ by {}", codec.name());
                for (at, open) in open.iter_mut().enumerate() {
                    *open += (0..size).map(|rank| f64::from(value(rank, step, at))).sum::<f64>() * share;
                    *open -= f64::from(mine[at]);
                }
            }
            let error = encoding.state().entries().find(|(name, _)| *name == "error").unwrap().1;
            let mut errors = error.host::<f32>()?.to_vec();
            comm.blocking().all_reduce(&mut errors, op)?;
            for (error, open) in errors.iter().zip(&open) {
                assert!((f64::from(*error) - open).abs() < 1e-3, "{error} is not {open}");
            }
            assert!(open.iter().any(|open| open.abs() > 0.01), "{} loses nothing", codec.name());
        }
        Ok(())
    });
}

/// Sums of whole numbers and of fractions, which round: a device must follow the host's order.
#[test]
fn a_device_gives_the_bits_of_the_host() {
    let reduced = |comm: &Communicator, queue: &Queue, codec: &Arc<dyn LinearCodec>, op| {
        let len = 1001;
        let mut encoding =
            Encoding::linear(Arc::clone(codec)).with_feedback(Feedback::Decaying(0.9)).with_seed(3);
        let mut all = Vec::new();
        for step in 0..3 {
            let mine: Vec<f32> = (0..len).map(|at| value(comm.rank(), step, at) / 3.0).collect();
            let mut mine = Buffer::from_slice_on(queue, &mine)?;
            comm.block_on(comm.all_reduce_linear(&mut mine, op, &mut encoding))?;
            all.extend(bits(&mine.host::<f32>()?));
        }
        all.extend(bits(&encoding.state().get("error").unwrap().host::<f32>()?));
        Ok::<_, Error>(all)
    };
    matrix(&RANKS, |comm| {
        let codecs: [Arc<dyn LinearCodec>; 3] = [
            Arc::new(Half),
            Arc::new(RandomK::new(Keep::Ratio(0.1))?),
            Arc::new(RandomK::unbiased(Keep::Count(300))?),
        ];
        for (codec, op) in codecs.iter().zip([ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Sum]) {
            let on_host = reduced(comm, &Queue::host(), codec, op)?;
            assert!(reduced(comm, &queue(), codec, op)? == on_host, "{}", codec.name());
        }
        Ok(())
    });
}

#[test]
fn what_goes_as_it_is_has_no_error_and_that_of_matrices_is_bounded() {
    matrix(&RANKS, |comm| {
        // A matrix of 5 × 6, and a vector; every rank has different numbers, the same in every step.
        let codec = Arc::new(PowerSgd::new(&[(5, 6), (3, 1)], 1)?);
        let mut encoding = Encoding::linear(codec).with_feedback(Feedback::Error);
        for _ in 0..200 {
            let mut mine: Vec<f32> = (0..33).map(|at| 100.0 * value(comm.rank(), at * at, at)).collect();
            comm.blocking().all_reduce_linear(&mut mine, ReduceOp::Mean, &mut encoding)?;
        }
        let error = encoding.state().get("error").unwrap().host::<f32>()?.to_vec();
        assert_eq!(error[30..], [0.0; 3]);
        let largest = error.iter().fold(0.0f32, |largest, e| largest.max(e.abs()));
        assert!(largest < 2e4, "{largest}");
        Ok(())
    });
}

/// Ranks whose GPUs access each other's memory: a refusal appears at the wait for the queue.
#[test]
fn not_finite_numbers_on_a_path_are_refused_when_the_queue_is_waited_for() {
    if skipped_under_mpi("it is about GPUs of one host") {
        return;
    }
    let run = |comm: Communicator| {
        let device = queue();
        if !device.name().starts_with("cuda") || comm.attach(&device)?.is_none() {
            println!("skipped: no path between CUDA devices");
            return Ok(());
        }
        let reduce = |policy| {
            let codec = RandomK::new(Keep::Count(5))?.with_not_finite(policy);
            let mut encoding = Encoding::linear(Arc::new(codec));
            let mut mine = [1.0; 30];
            mine[17] = if comm.rank() == 1 { f32::NAN } else { 1.0 };
            let mut mine = Buffer::from_slice_on(&device, &mine)?;
            comm.block_on(comm.all_reduce_linear(&mut mine, ReduceOp::Sum, &mut encoding))?;
            Ok::<_, Error>(mine)
        };
        let propagated = reduce(NotFinite::Propagate)?;
        assert_eq!(propagated.host::<f32>()?.iter().filter(|x| x.is_nan()).count(), 5);
        let refused = reduce(NotFinite::Refuse)?;
        comm.blocking().barrier()?;
        match refused.queue().check() {
            Err(error) => {
                let text = error.to_string();
                let told = text.contains("random-k(5)") && text.contains("element 17 is NaN");
                assert!(comm.rank() == 1 && told, "rank {}: {text}", comm.rank());
            }
            Ok(()) => assert_eq!(comm.rank(), 0),
        }
        Ok(())
    };
    for transport in [TransportKind::Thread, TransportKind::Shm] {
        spawn(transport, 2, run).unwrap();
    }
}
