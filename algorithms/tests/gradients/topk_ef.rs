//! Top-k with error feedback: equivalence to synchronous SGD, and losslessness.

use crate::replicas::{Made, Run, furthest, optimum, pull};
use hexagram_algorithms::GradientAllReduce;
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::logical::testing::cases;

fn top(fraction: f64) -> impl Fn() -> Made + Sync {
    move || CompressedAllReduce::TopK { fraction }.into()
}

#[test]
fn all_elements_are_synchronous_sgd() {
    for (transport, ranks) in cases(&[1, 2, 3]) {
        let run = Run { transport, ranks, ..Run::default() };
        let found = run.train(top(1.0), pull);
        let exact = run.train(|| GradientAllReduce.into(), pull);
        let error = furthest(&found[0], &exact[0]);
        assert!(error < 1e-5, "{transport} × {ranks}: {error}");
    }
}

#[test]
fn what_is_not_sent_at_once_is_sent_later_at_the_rate_of_its_own_step() {
    let rate = |step: usize| [0.1, 0.05, 0.0, 0.02][step % 4];
    let gradient = |rank: usize, step: usize, x: &[f32]| match step {
        0..8 => pull(rank, step, &vec![step as f32; x.len()]),
        _ => vec![0.0; x.len()],
    };
    // Five of fifty elements per step: after ten more steps at a rate above 0, no error is left.
    let short = Run { rate, steps: 8, ..Run::default() };
    let long = Run { rate, steps: 8 + 14, ..Run::default() };
    let exact = short.train(|| GradientAllReduce.into(), gradient);
    assert!(furthest(&short.train(top(0.1), gradient)[0], &exact[0]) > 0.1);
    let error = furthest(&long.train(top(0.1), gradient)[0], &exact[0]);
    assert!(error < 1e-5, "{error}");
}

#[test]
fn replicas_stay_identical_and_come_close_to_the_optimum() {
    for (transport, ranks) in cases(&[3]) {
        let rate = |step: usize| 0.2 / (1.0 + step as f64 / 20.0);
        let run = Run { transport, ranks, rate, steps: 300, ..Run::default() };
        let found = run.train(top(0.06), pull);
        assert!(found.iter().all(|replica| *replica == found[0]), "{transport}");
        let error = furthest(&found[0], &optimum(ranks, 50));
        assert!(error < 1.0, "{transport}: {error}");
    }
}
