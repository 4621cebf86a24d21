//! PowerSGD where it is exact, what it must not lose.

use crate::replicas::{Made, Run, furthest, optimum, pull};
use hexagram_algorithms::GradientAllReduce;
use hexagram_algorithms::logical::testing::cases;
use hexagram_algorithms::powersgd::PowerSgd;

const ROWS: usize = 12;
const COLS: usize = 20;

/// A number between −1 and 1 for each place.
fn noise(what: usize) -> f32 {
    let word = (what as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// A matrix of full rank.
fn full(seed: usize) -> Vec<f32> {
    (0..ROWS * COLS).map(|at| noise(seed * 1000 + at)).collect()
}

fn made(rank: usize, start: u64) -> impl Fn() -> Made + Sync {
    move || PowerSgd { rank, saving: 1.0, start }.into()
}

fn exact() -> Made {
    GradientAllReduce.into()
}

fn run() -> Run<f32> {
    Run { shape: vec![ROWS, COLS], ..Run::default() }
}

#[test]
fn a_mean_of_its_rank_is_exact() {
    // Full rank on every rank, but what they have in common is of rank 2.
    let gradient = |rank: usize, step: usize, _: &[f32]| -> Vec<f32> {
        let own = full(rank);
        let next = full((rank + 1) % 4);
        let common = |at: usize| {
            let row = at / COLS;
            let col = at % COLS;
            noise(row + 31 * step) * noise(900 + col) + noise(500 + row) * noise(700 + col)
        };
        (0..ROWS * COLS).map(|at| own[at] - next[at] + common(at)).collect()
    };
    let run = Run { steps: 5, ..run() };
    let error = furthest(&run.train(made(2, 0), gradient)[0], &run.train(exact, gradient)[0]);
    assert!(error < 2e-5, "{error}");
}

#[test]
fn factors_as_large_as_the_matrix_are_synchronous_sgd() {
    let rank = ROWS.min(COLS);
    let run = Run { steps: 50, ..run() };
    let error = furthest(&run.train(made(rank, 0), pull)[0], &run.train(exact, pull)[0]);
    assert!(error < 1e-4, "{error}");
}

#[test]
fn before_the_start_it_is_an_all_reduce() {
    let gradient = |rank: usize, step: usize, _: &[f32]| full(rank + 10 * step);
    let steps =
        |steps, algorithm: &(dyn Fn() -> Made + Sync)| Run { steps, ..run() }.train(algorithm, gradient);
    assert_eq!(steps(4, &made(1, 4)), steps(4, &exact));
    assert_ne!(steps(5, &made(1, 4)), steps(5, &exact));
}

#[test]
fn what_it_cannot_say_at_once_it_says_later() {
    // Gradients for six steps at falling learning rates, then none: the error is sent until nothing is left.
    let rate = |step: usize| 0.1 / (1 + step % 6) as f64;
    let gradient = |rank: usize, step: usize, _: &[f32]| match step {
        0..6 => full(rank + 10 * step),
        _ => vec![0.0; ROWS * COLS],
    };
    let short = Run { rate, steps: 6, ..run() };
    let long = Run { rate, steps: 60, ..run() };
    let exact = short.train(exact, gradient);
    assert!(furthest(&short.train(made(2, 0), gradient)[0], &exact[0]) > 1e-2, "rank 2 is not enough");
    let error = furthest(&long.train(made(2, 0), gradient)[0], &exact[0]);
    assert!(error < 1e-5, "{error}");
}

#[test]
fn replicas_stay_identical_and_reach_the_optimum() {
    for (transport, ranks) in cases(&[1, 3]) {
        let run = Run { transport, ranks, steps: 120, rate: |_| 0.2, ..run() };
        let found = run.train(made(2, 10), pull);
        assert!(found.iter().all(|replica| *replica == found[0]), "{transport} × {ranks}");
        let error = furthest(&found[0], &optimum(ranks, ROWS * COLS));
        assert!(error < 1e-3, "{transport} × {ranks}: {error}");
    }
}

#[test]
fn vectors_are_those_of_an_all_reduce_however_different_the_ranks_are() {
    // Every rank is drawn to a minimum of its own, some 10⁴ away from the others': an error of theirs would grow to 10⁶.
    let gradient = |rank: usize, _: usize, x: &[f32]| {
        let away = [-12_000.0, 1000.0, 3000.0, 8000.0][rank];
        x.iter().enumerate().map(|(at, x)| x - away - at as f32).collect()
    };
    let run = Run { shape: vec![20], steps: 400, ..Run::default() };
    let error = furthest(&run.train(made(2, 0), gradient)[0], &run.train(exact, gradient)[0]);
    assert!(error < 1e-3, "{error}");
}

#[test]
fn matrices_that_save_too_little_go_as_they_are() {
    // Factors of rank 2 have 64 elements of the 240: 3.75 times less.
    let gradient = |rank: usize, step: usize, _: &[f32]| full(rank + 10 * step);
    let run = Run { steps: 3, ..run() };
    let exact = run.train(exact, gradient);
    let saving = |saving| run.train(move || PowerSgd { rank: 2, saving, start: 0 }.into(), gradient);
    assert!(furthest(&saving(3.75)[0], &exact[0]) < 1e-5);
    assert!(furthest(&saving(3.7)[0], &exact[0]) > 1e-2);
    let refused = |saving| {
        let wrong = move || -> Made { PowerSgd { saving, ..PowerSgd::default() }.into() };
        run.refused(wrong, |_| 1.0)
    };
    for error in [refused(0.5), refused(f64::NAN)].concat() {
        assert!(error.contains("saving of powersgd is"), "{error}");
    }
}

#[test]
fn a_rank_of_zero_is_refused() {
    let refused = Run { ranks: 2, ..run() }.refused(made(0, 0), |_| 1.0);
    assert!(refused.iter().all(|error| error.contains("rank of powersgd is 0")), "{refused:?}");
}

#[test]
fn a_gradient_that_is_not_a_number_ends_the_training_and_names_the_rank() {
    let gradient = |rank| if rank == 1 { f32::NAN } else { 1.0 };
    for error in (Run { ranks: 3, ..run() }).refused(made(2, 0), gradient) {
        assert!(error.contains("rank 1"), "{error}");
    }
}
