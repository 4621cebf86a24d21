//! LoCo against its steps computed by hand in f64, and against two-level feedback.

use crate::replicas::{Made, Run, furthest, optimum, pull};
use hexagram_algorithms::Averaging;
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::loco::LoCo;
use hexagram_algorithms::logical::codec::Int4;
use hexagram_algorithms::logical::encoding::Feedback;
use hexagram_algorithms::logical::testing::cases;

const BLOCK: usize = 4;
const LEN: usize = 24;

fn made(loco: LoCo) -> impl Fn() -> Made + Sync {
    move || loco.into()
}

/// Returns numbers after encoding in four bits, in blocks.
fn four_bits(x: &[f64]) -> Vec<f64> {
    let block = |x: &[f64]| {
        let step = x.iter().fold(0.0f64, |largest, x| largest.max(x.abs())) / 7.0;
        x.iter().map(|x| (x / step).round() * step).collect::<Vec<f64>>()
    };
    x.chunks(BLOCK).flat_map(block).collect()
}

fn gradient(rank: usize, step: usize, at: usize) -> f64 {
    ((at * 7 + rank * 31 + step * 13) as f64 * 0.7391).sin() + 0.1 * rank as f64
}

#[test]
fn its_steps_are_those_computed_by_hand() {
    // Every chunk, a third of the elements, is two blocks.
    let ranks = 3;
    let steps = 14;
    let memory = 0.8;
    let reset = 5;
    let loco = LoCo { memory, reset, block: BLOCK };
    let given = |rank: usize, step: usize, x: &[f32]| {
        (0..x.len()).map(|at| gradient(rank, step, at) as f32).collect::<Vec<f32>>()
    };
    let run = Run { ranks, shape: vec![LEN], steps, ..Run::default() };
    let found = run.train(made(loco), given);
    let mut e = vec![vec![0.0; LEN]; ranks];
    let mut owner = vec![0.0; LEN];
    let mut x = [0.0; LEN];
    for step in 0..steps {
        let mut mean = owner.clone();
        for (rank, e) in e.iter_mut().enumerate() {
            let h: Vec<f64> = e.iter().enumerate().map(|(at, e)| e + gradient(rank, step, at)).collect();
            let sent = four_bits(&h);
            for at in 0..LEN {
                mean[at] += sent[at] / ranks as f64;
                e[at] = memory * e[at] + (1.0 - memory) * (h[at] - sent[at]);
            }
            if (step + 1) % reset as usize == 0 {
                e.fill(0.0);
            }
        }
        let sent = four_bits(&mean);
        for at in 0..LEN {
            owner[at] = mean[at] - sent[at];
            x[at] -= 0.1 * sent[at];
        }
    }
    let expected: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    let error = furthest(&found[0], &expected);
    assert!(error < 1e-5, "{error}");
}

#[test]
fn without_memory_it_is_two_level_feedback() {
    let run = Run { shape: vec![300], rate: |_| 0.125, ..Run::default() };
    let averaging = Averaging::encoded(Int4::in_blocks(16), Feedback::TwoLevel);
    let exact = run.train(|| CompressedAllReduce::Any(averaging.clone()).into(), pull);
    assert_eq!(run.train(made(LoCo { memory: 0.0, reset: u64::MAX, block: 16 }), pull), exact);
}

#[test]
fn replicas_stay_identical_and_come_to_the_optimum() {
    for (transport, ranks) in cases(&[1, 3]) {
        let rate = |step: usize| 0.2 / (1.0 + step as f64 / 20.0);
        let run = Run { transport, ranks, shape: vec![500], rate, steps: 150, ..Run::default() };
        let found = run.train(made(LoCo::default()), pull);
        assert!(found.iter().all(|replica| *replica == found[0]), "{transport}");
        let error = furthest(&found[0], &optimum(ranks, 500));
        assert!(error < 0.2, "{transport} × {ranks}: {error}");
    }
}
