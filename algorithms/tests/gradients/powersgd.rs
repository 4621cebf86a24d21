//! PowerSGD against its rule in f64, where it is exact, and losslessness.

use crate::replicas::{Made, Run, furthest, optimum, pull};
use hexagram_algorithms::GradientAllReduce;
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::logical::testing::cases;

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
    move || CompressedAllReduce::LowRank { rank, saving: 1.0, start }.into()
}

fn exact() -> Made {
    GradientAllReduce.into()
}

fn run() -> Run<f32> {
    Run { shape: vec![ROWS, COLS], ..Run::default() }
}

/// Returns A B for matrices with `between` inner columns and rows, in row-major order.
fn product(a: &[f64], between: usize, b: &[f64]) -> Vec<f64> {
    let columns = b.len() / between;
    let element =
        |row: &[f64], column: usize| (0..between).map(|at| row[at] * b[at * columns + column]).sum();
    a.chunks(between).flat_map(|row| (0..columns).map(move |column| element(row, column))).collect()
}

fn transposed(a: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|column| a.iter().skip(column).step_by(columns).copied()).collect()
}

/// Returns an orthonormal basis of the span of the first columns of a matrix.
fn basis(a: &[f64], columns: usize, rank: usize) -> Vec<f64> {
    let mut found: Vec<Vec<f64>> = Vec::new();
    for column in 0..rank {
        let mut p: Vec<f64> = a.iter().skip(column).step_by(columns).copied().collect();
        for other in &found {
            let along: f64 = p.iter().zip(other).map(|(p, other)| p * other).sum();
            p.iter_mut().zip(other).for_each(|(p, other)| *p -= along * other);
        }
        let norm = p.iter().map(|p| p * p).sum::<f64>().sqrt();
        found.push(p.into_iter().map(|p| p / norm).collect());
    }
    transposed(&found.concat(), a.len() / columns)
}

/// Returns P Pᵀ A.
fn projected(p: &[f64], rank: usize, a: &[f64]) -> Vec<f64> {
    let rows = p.len() / rank;
    product(p, rank, &product(&transposed(p, rank), rows, a))
}

/// PowerSGD of one matrix in f64, for all ranks.
struct Single {
    x: Vec<f64>,
    e: Vec<Vec<f64>>,
    /// Columns of Q, concatenated: empty before the first step.
    q: Vec<f64>,
}

impl Single {
    const RANK: usize = 2;

    /// Makes a step with γ gᵢ. `first` returns the observed change of x in the very first step.
    fn step(&mut self, scaled: &[Vec<f64>], first: impl FnOnce(&[f64]) -> Vec<f64>) {
        for (e, scaled) in self.e.iter_mut().zip(scaled) {
            e.iter_mut().zip(scaled).for_each(|(e, scaled)| *e += scaled);
        }
        let mean = mean(&self.e);
        // The first Q is random, and only its span matters: that of the columns of the first step.
        let p = match self.q.is_empty() {
            true => basis(&first(&self.x), COLS, Self::RANK),
            false => basis(&product(&mean, COLS, &self.q), Self::RANK, Self::RANK),
        };
        self.q = product(&transposed(&mean, COLS), ROWS, &p);
        subtract(&mut self.x, &projected(&p, Self::RANK, &mean));
        for e in &mut self.e {
            let said = projected(&p, Self::RANK, e);
            subtract(e, &said);
        }
    }
}

fn mean(all: &[Vec<f64>]) -> Vec<f64> {
    (0..all[0].len()).map(|at| all.iter().map(|one| one[at]).sum::<f64>() / all.len() as f64).collect()
}

fn subtract(from: &mut [f64], what: &[f64]) {
    from.iter_mut().zip(what).for_each(|(from, what)| *from -= what);
}

#[test]
fn its_steps_are_those_of_its_rule() {
    const RANKS: usize = 3;
    let start = 2;
    let rate = |step: usize| 0.1 / (1 + step % 3) as f64;
    let slope = |rank: usize, step: usize, at: usize, x: f64| {
        let minimum =
            3.0 * f64::from(noise(at + 300 * rank)) + 0.2 * f64::from(noise(at + 1000 * (step + 1)));
        (1.0 + 0.3 * rank as f64) * (x - minimum)
    };
    let gradient = |rank: usize, step: usize, x: &[f32]| -> Vec<f32> {
        x.iter().enumerate().map(|(at, x)| slope(rank, step, at, f64::from(*x)) as f32).collect()
    };
    let found = |steps: usize| -> Vec<f64> {
        let run = Run { ranks: RANKS, shape: vec![ROWS, 4, 5], rate, steps, ..Run::default() };
        run.train(made(Single::RANK, start as u64), gradient).remove(0).into_iter().map(f64::from).collect()
    };
    let none = vec![0.0; ROWS * COLS];
    let mut single = Single { x: none.clone(), e: vec![none; RANKS], q: Vec::new() };
    for step in 0..12 {
        let scaled = [0, 1, 2].map(|rank| -> Vec<f64> {
            single.x.iter().enumerate().map(|(at, x)| rate(step) * slope(rank, step, at, *x)).collect()
        });
        let after = found(step + 1);
        match step < start {
            true => subtract(&mut single.x, &mean(&scaled)),
            false => single.step(&scaled, |x| x.iter().zip(&after).map(|(x, after)| x - after).collect()),
        }
        let error = furthest(&after, &single.x);
        assert!(error < 3e-5, "{error} after step {step}");
    }
    assert!(furthest(&mean(&single.e), &[0.0; ROWS * COLS]) > 0.1, "rank 2 says all");
}

#[test]
fn a_mean_of_its_rank_is_exact() {
    // Full rank on every rank, but their mean has rank 2.
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
    // Gradients for six steps at falling learning rates, then none: the error is sent until it is 0.
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
    // Every rank has its own minimum, some 10⁴ away from the others: the error would grow to 10⁶.
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
    let saving = |saving| {
        run.train(move || CompressedAllReduce::LowRank { rank: 2, saving, start: 0 }.into(), gradient)
    };
    assert!(furthest(&saving(3.75)[0], &exact[0]) < 1e-5);
    assert!(furthest(&saving(3.7)[0], &exact[0]) > 1e-2);
}
