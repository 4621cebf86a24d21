//! How close ranks come to their mean, with each feedback.

use super::lossy::Lossy;
use super::{DCD, choco, encoding, numbers, remembered};
use hexagram_logical::decentralized::{Difference, GossipOptions, Topology};
use hexagram_logical::encoding::Feedback;
use hexagram_logical::testing::{self, skipped_under_mpi, spawn};
use hexagram_logical::{Communicator, ReduceOp, Result, TransportKind};

/// The mean over ranks, and ‖X − X̄‖² + ‖X − X̂‖², where `copy` is x̂, if there is one.
pub(super) fn distance(comm: &Communicator, x: &[f32], copy: Option<&[f32]>) -> Result<(Vec<f64>, f64)> {
    let mut mean: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    comm.blocking().all_reduce(&mut mean, ReduceOp::Mean)?;
    let squared = |(x, other): (&f32, f64)| (f64::from(*x) - other).powi(2);
    let mut sum = [x.iter().zip(mean.iter().copied()).map(squared).sum::<f64>()];
    if let Some(copy) = copy {
        sum[0] += x.iter().zip(copy.iter().map(|x| f64::from(*x))).map(squared).sum::<f64>();
    }
    comm.blocking().all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok((mean, sum[0]))
}

/// Ranks that gossip from normal numbers: how far they are from the mean after each of some rounds, in proportion to
/// the beginning, squared; and how far the mean has moved.
fn squared_error(
    ranks: usize,
    len: usize,
    codec: Lossy,
    (feedback, options): (Feedback, GossipOptions),
    after: &[u64],
) -> (Vec<f64>, f64) {
    let outcome = spawn(TransportKind::Thread, ranks, |comm| {
        let mut x = numbers(comm.rank(), len);
        let mut encoding = encoding(codec, feedback);
        if options.difference == Difference::AfterMixing {
            let buffer = testing::buffer(&x);
            comm.block_on(comm.gossip_synchronize(&buffer, &Topology::Ring, 0, &mut encoding))?;
        }
        let (first, begun) = distance(&comm, &x, None)?;
        let mut errors = Vec::new();
        for round in 1..=after[after.len() - 1] {
            comm.blocking().gossip_encoded(&mut x, &Topology::Ring, round, &mut encoding, options)?;
            if after.contains(&round) {
                let copy = (feedback == Feedback::Difference).then(|| remembered(&encoding, "own"));
                errors.push(distance(&comm, &x, copy.as_deref())?.1 / begun);
            }
        }
        let (last, _) = distance(&comm, &x, None)?;
        let moved = first.iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        Ok((errors, moved))
    });
    outcome.unwrap().swap_remove(0)
}

#[test]
fn an_exact_codec_contracts_by_the_consensus_step() {
    if skipped_under_mpi("it is about the mathematics, on any transport") {
        return;
    }
    // On the slowest mode of a ring, 1 − λ is its σ₂.
    let ranks = 8usize;
    let gamma = 0.6;
    let angle = 2.0 * std::f64::consts::PI / ranks as f64;
    let lambda = 1.0 - (1.0 + 2.0 * angle.cos()) / 3.0;
    spawn(TransportKind::Thread, ranks, |comm| {
        let first = (angle * comm.rank() as f64).cos();
        let mut x = [first as f32; 3];
        let mut encoding = encoding(Lossy::Identity, Feedback::Difference);
        for round in 1..=12 {
            comm.blocking().gossip_encoded(&mut x, &Topology::Ring, 0, &mut encoding, choco(gamma))?;
            let want = first * (1.0 - gamma * lambda).powi(round);
            assert!((f64::from(x[0]) - want).abs() < 1e-6, "{x:?} in round {round} is not {want}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn choco_agrees_on_the_mean_though_nine_tenths_are_left_out() {
    if skipped_under_mpi("it is about the mathematics, on any transport") {
        return;
    }
    let (errors, moved) =
        squared_error(16, 200, Lossy::TopTenth, (Feedback::Difference, choco(0.34)), &[100, 250]);
    let per_round = (errors[1] / errors[0]).powf(1.0 / 150.0);
    assert!((0.95..0.98).contains(&per_round), "{per_round}");
    assert!(moved < 1e-5, "the mean moved by {moved}");
}

#[test]
fn choco_with_the_proven_consensus_step_is_slow_and_sure() {
    if skipped_under_mpi("it is about the mathematics, on any transport") {
        return;
    }
    let (errors, _) =
        squared_error(16, 200, Lossy::TopTenth, (Feedback::Difference, choco(3.193e-5)), &[100, 200]);
    let per_round = (errors[1] / errors[0]).powf(1.0 / 100.0);
    assert!((0.9998..0.99999686).contains(&per_round), "{per_round}");
}

#[test]
fn without_feedback_gossip_stalls_where_differences_go_on() {
    if skipped_under_mpi("it is about the mathematics, on any transport") {
        return;
    }
    let rounds = &[40, 80, 120];
    let (naive, moved) = squared_error(8, 300, Lossy::Qsgd(64), (Feedback::None, choco(1.0)), rounds);
    assert!(naive[1] > 1e-3 && naive[2] > 1e-3, "{naive:?}");
    assert!(moved < 1e-5, "the mean moved by {moved}");
    let (differences, _) = squared_error(8, 300, Lossy::Qsgd(64), (Feedback::Difference, choco(1.0)), rounds);
    assert!(differences[2] < 1e-9, "{differences:?}");
}

#[test]
fn deep_squeeze_comes_nearer_than_no_feedback_and_keeps_the_mean() {
    if skipped_under_mpi("it is about the mathematics, on any transport") {
        return;
    }
    let rounds = &[150];
    let (naive, _) = squared_error(8, 300, Lossy::TopTenth, (Feedback::None, choco(0.05)), rounds);
    let (squeezed, moved) = squared_error(8, 300, Lossy::TopTenth, (Feedback::Error, choco(0.05)), rounds);
    assert!(squeezed[0] < 0.5 * naive[0], "{squeezed:?} {naive:?}");
    assert!(moved < 1e-5, "the mean moved by {moved}");
}

#[test]
fn dcd_agrees_with_fine_codecs_and_diverges_with_coarse_ones() {
    if skipped_under_mpi("it is about the mathematics, on any transport") {
        return;
    }
    let error = |codec| squared_error(16, 500, codec, (Feedback::Difference, DCD), &[60]).0[0];
    let fine = error(Lossy::Qsgd(16));
    assert!(fine < 0.05, "{fine}");
    let coarse = error(Lossy::Qsgd(1));
    assert!(coarse.is_nan() || coarse > 10.0, "{coarse}");
}

#[test]
fn ecd_estimates_get_better_as_one_over_t() {
    if skipped_under_mpi("it is about the mathematics, on any transport") {
        return;
    }
    // With one rank, the sum over neighbours is its estimate of itself. Every element is a trial.
    spawn(TransportKind::Thread, 1, |comm| {
        let mut x = vec![0f32; 3000];
        let mut encoding = encoding(Lossy::Noisy, Feedback::Extrapolation);
        for t in 1..=300u32 {
            x.iter_mut().enumerate().for_each(|(at, x)| *x += 0.01 * (at as f32 + t as f32).sin());
            comm.blocking().gossip_encoded(&mut x, &Topology::Ring, 0, &mut encoding, choco(1.0))?;
            let estimates = remembered(&encoding, "neighbours");
            let squared = estimates.iter().zip(&x).map(|(a, b)| f64::from(a - b).powi(2));
            let error = squared.sum::<f64>() / x.len() as f64;
            // After t messages the estimate is of step t + 1.
            match t {
                9 => assert!((0.06..0.1).contains(&error), "{error} at 10"),
                99 => assert!((0.0055..0.01).contains(&error), "{error} at 100"),
                299 => assert!(error < 1.0 / 300.0, "{error} at 300"),
                _ => {}
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn ecd_ranks_agree_although_codecs_add_noise() {
    if skipped_under_mpi("it is about the mathematics, on any transport") {
        return;
    }
    let error =
        |rounds| squared_error(8, 300, Lossy::Noisy, (Feedback::Extrapolation, choco(1.0)), &[rounds]).0[0];
    let early = error(10);
    let late = error(200);
    assert!(late < 0.25 * early, "{early} after 10 rounds, {late} after 200");
}
