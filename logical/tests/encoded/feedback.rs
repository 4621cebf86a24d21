//! The purpose of feedback: a codec's losses are sent later, so training reaches the same result.

use super::codecs::{Dithered, Largest};
use super::{RANKS, bits, contribution, matrix};
use hexagram_logical::codec::{Codec, Half, Sign};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{self, cases, spawn};
use hexagram_logical::{Communicator, ReduceOp, Result};
use std::sync::Arc;

/// The memory of a rank under a name, or zeros.
fn remembered(encoding: &Encoding, name: &str, len: usize) -> Vec<f32> {
    let entry = encoding.state().entries().find(|(entry, _)| *entry == name);
    entry.map_or_else(|| vec![0.0; len], |(_, buffer)| buffer.host::<f32>().unwrap().to_vec())
}

/// Σₜ resultₜ + mean(eᵢ) + s = Σₜ mean(gₜ): with a learning rate, x_t − mean(e) − s = x_0 − γ Σ mean(g) of the paper.
fn nothing_is_lost(
    comm: &Communicator,
    sparse: bool,
    codec: Arc<dyn Codec>,
    feedback: Feedback,
) -> Result<()> {
    let rank = comm.rank();
    let size = comm.size();
    let len = 8 * 40;
    let mut encoding = Encoding::new(codec).with_feedback(feedback);
    let mut said = vec![0.0f64; len];
    let mut meant = vec![0.0f64; len];
    for step in 0..20 {
        let mut buffer = contribution(rank, step, 0..len);
        if sparse {
            comm.blocking().all_reduce_sparse(&mut buffer, ReduceOp::Mean, &mut encoding)?;
        } else {
            comm.blocking().all_reduce_encoded(&mut buffer, ReduceOp::Mean, &mut encoding)?;
        }
        said.iter_mut().zip(&buffer).for_each(|(said, x)| *said += f64::from(*x));
        for rank in 0..size {
            let numbers = contribution(rank, step, 0..len);
            meant.iter_mut().zip(numbers).for_each(|(meant, x)| *meant += f64::from(x) / size as f64);
        }
    }
    let mut errors = remembered(&encoding, "error", len);
    comm.blocking().all_reduce(&mut errors, ReduceOp::Mean)?;
    let mut owned = vec![0.0; len];
    comm.blocking().all_gather(&remembered(&encoding, "server error", len / size), &mut owned)?;
    for at in 0..len {
        let all = said[at] + f64::from(errors[at]) + f64::from(owned[at]);
        assert!((all - meant[at]).abs() < 1e-2, "element {at}: {all} is not {}", meant[at]);
    }
    // The codec does lose something, or this would prove nothing.
    let lost = |at: usize| (said[at] - meant[at]).abs();
    assert!((0..len).any(|at| lost(at) > 0.05), "{encoding:?}");
    Ok(())
}

#[test]
fn errors_are_remembered_until_they_are_said() {
    for (transport, ranks) in cases(&[1, 2, 4, 8]) {
        let run = |comm: Communicator| {
            nothing_is_lost(&comm, false, Arc::new(Largest(3)), Feedback::TwoLevel)?;
            nothing_is_lost(&comm, false, Arc::new(Dithered), Feedback::TwoLevel)?;
            nothing_is_lost(&comm, true, Arc::new(Largest(3)), Feedback::Error)
        };
        spawn(transport, ranks, run).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}

#[test]
fn what_was_saved_goes_on_bit_for_bit() {
    matrix(&RANKS, |comm| {
        let len = 77;
        for feedback in [Feedback::Error, Feedback::Decaying(0.5), Feedback::TwoLevel, Feedback::Difference] {
            let fresh = || Encoding::new(Arc::new(Dithered)).with_feedback(feedback).with_seed(3);
            let step = |encoding: &mut Encoding, step: usize| -> Result<Vec<u32>> {
                let mut buffer = contribution(comm.rank(), step, 0..len);
                comm.blocking().all_reduce_encoded(&mut buffer, ReduceOp::Mean, encoding)?;
                Ok(bits(&buffer))
            };
            let mut without = fresh();
            let expected: Vec<_> = (0..6).map(|at| step(&mut without, at)).collect::<Result<_>>()?;
            let mut before = fresh();
            (0..3).try_for_each(|at| step(&mut before, at).map(drop))?;
            let saved: Vec<(String, Vec<f32>)> = before
                .state()
                .entries()
                .map(|(name, buffer)| (name.to_owned(), buffer.host::<f32>().unwrap().to_vec()))
                .collect();
            let operations = before.state().operations();
            assert_eq!(operations, 3);
            let restored = saved.iter().map(|(name, all)| (name.clone(), testing::buffer(all)));
            let mut after = fresh();
            after.state_mut().restore(operations, restored);
            for (at, expected) in expected.iter().enumerate().skip(3) {
                assert_eq!(step(&mut after, at)?, *expected, "{feedback}, step {at}");
            }
        }
        Ok(())
    });
}

#[test]
fn means_of_values_that_ranks_keep_leave_their_sum_and_draw_anew_each_time() {
    matrix(&RANKS, |comm| {
        let len = 10;
        let mut encoding = Encoding::new(Arc::new(Dithered)).with_feedback(Feedback::Difference);
        let mut x = contribution(comm.rank(), 0, 0..len);
        let mut before = x.clone();
        comm.blocking().all_reduce(&mut before, ReduceOp::Sum)?;
        for round in 1..=4 {
            let mut value = testing::buffer(&x);
            let mut mean = testing::buffer(&vec![0.0f32; len]);
            comm.block_on(comm.mean_kept_encoded(&mut value, &mut mean, &mut encoding))?;
            assert_eq!(encoding.state().operations(), round);
            let exchanged = mean
                .host::<f32>()?
                .iter()
                .zip(&*value.host::<f32>()?)
                .map(|(m, v)| m - v)
                .collect::<Vec<_>>();
            x.iter_mut().zip(exchanged).for_each(|(x, change)| *x += change);
            let mut after = x.clone();
            comm.blocking().all_reduce(&mut after, ReduceOp::Sum)?;
            let moved =
                after.iter().zip(&before).map(|(after, before)| (after - before).abs()).fold(0.0, f32::max);
            assert!(moved < 1e-3, "{moved}");
        }
        Ok(())
    });
}

/// ∇fᵢ at x, with fᵢ = ⟨aᵢ, x⟩² + ¼‖x‖² (Beznosikov et al. 2020, example 1).
fn gradient(rank: usize, x: [f32; 3]) -> [f32; 3] {
    let a: [f32; 3] = std::array::from_fn(|at| if at == rank { -3.0 } else { 2.0 });
    let product: f32 = a.iter().zip(x).map(|(a, x)| a * x).sum();
    std::array::from_fn(|at| 2.0 * product * a[at] + x[at] / 2.0)
}

#[test]
fn difference_feedback_converges_where_the_largest_element_alone_diverges() {
    for (transport, ranks) in cases(&[3]) {
        let descend = |comm: &Communicator, feedback, rate: f32, steps| -> Result<Vec<f64>> {
            let mut encoding = Encoding::new(Arc::new(Largest(1))).with_feedback(feedback);
            let mut x = [1.0f32; 3];
            let mut norms = Vec::new();
            for _ in 0..steps {
                let mut direction = gradient(comm.rank(), x);
                comm.blocking().all_reduce_sparse(&mut direction, ReduceOp::Mean, &mut encoding)?;
                x.iter_mut().zip(direction).for_each(|(x, d)| *x -= rate * d);
                norms.push(x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt());
            }
            Ok(norms)
        };
        let run = |comm: Communicator| {
            let rate = 0.01f32;
            let naive = descend(&comm, Feedback::None, rate, 50)?;
            for pair in naive.windows(2) {
                let growth = 1.0 + 11.0 * f64::from(rate) / 6.0;
                assert!((pair[1] / pair[0] / growth - 1.0).abs() < 1e-6, "{} after {}", pair[1], pair[0]);
            }
            let rate = 0.005_859_121;
            // In f64 it reaches 1.7e-9 in 3000 steps; in f32 the difference of m and the mean of all h ends it
            // earlier.
            let norms = descend(&comm, Feedback::Difference, rate, 1200)?;
            let factor = (norms[1199] / norms[599]).powf(1.0 / 600.0);
            assert!((factor - 0.99312).abs() < 1e-4, "{factor} per step");
            assert!(norms[1199] < 1e-3, "{}", norms[1199]);
            Ok(())
        };
        spawn(transport, ranks, run).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}

#[test]
fn error_feedback_converges_where_signs_alone_stay() {
    // fᵢ = ⟨aᵢ, x⟩² with aᵢ = ±(1, −1) + ½(1, 1): both signs are (1, −1), a direction without progress (Karimireddy
    // et al. 2019, counterexample 3).
    for (transport, ranks) in cases(&[2]) {
        let descend = |comm: &Communicator, feedback| -> Result<f32> {
            let a = if comm.rank() == 0 { [1.5f32, -0.5] } else { [-0.5, 1.5] };
            let mut encoding = Encoding::new(Arc::new(Sign::whole())).with_feedback(feedback);
            let mut x = [1.0f32, 1.0];
            for _ in 0..1000 {
                let product = a[0] * x[0] + a[1] * x[1];
                let mut direction = a.map(|a| 2.0 * product * a);
                comm.blocking().all_reduce_sparse(&mut direction, ReduceOp::Mean, &mut encoding)?;
                x = [x[0] - 0.05 * direction[0], x[1] - 0.05 * direction[1]];
            }
            Ok((1.5 * x[0] - 0.5 * x[1]).powi(2) + (1.5 * x[1] - 0.5 * x[0]).powi(2))
        };
        let run = |comm: Communicator| {
            let alone = descend(&comm, Feedback::None)?;
            let helped = descend(&comm, Feedback::Error)?;
            assert!(alone > 1.99 && helped < 1e-20, "{alone} and {helped}");
            Ok(())
        };
        spawn(transport, ranks, run).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}

#[test]
fn differences_of_something_constant_vanish() {
    matrix(&RANKS, |comm| {
        let mut encoding = Encoding::new(Arc::new(Half::BF16)).with_feedback(Feedback::Difference);
        let mean = |at: usize| (0..comm.size()).map(|rank| 1.0 / (3 + at + rank) as f32).sum::<f32>();
        for _ in 0..5 {
            let mut buffer: Vec<f32> = (0..99).map(|at| 1.0 / (3 + at + comm.rank()) as f32).collect();
            comm.blocking().all_reduce_encoded(&mut buffer, ReduceOp::Mean, &mut encoding)?;
            if encoding.state().operations() == 5 {
                for (at, x) in buffer.iter().enumerate() {
                    assert!((x - mean(at) / comm.size() as f32).abs() < 1e-7, "bf16 alone errs by 1e-3");
                }
            }
        }
        Ok(())
    });
}
