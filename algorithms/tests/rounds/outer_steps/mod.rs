//! Algorithms that make an outer step after some local ones, against their rules in f64 on data that differ between
//! ranks: inner optimizer, selection and quantizer are implemented here.

mod muloco;
mod sparse_loco;

use hexagram_algorithms::diloco::Outer;
use hexagram_algorithms::logical::{Element, TransportKind, testing::spawn};
use hexagram_algorithms::testing::{Setup, Trainer, fitting};
use hexagram_algorithms::{AnyAlgorithm, Sgd};
use std::sync::Arc;

const PERIOD: u64 = 3;
const ROUNDS: u64 = 4;

/// Elements of every tensor.
type Model = Vec<Vec<f64>>;

/// Shapes of a model of matrices, one of them tall, and vectors.
fn shapes() -> Vec<Vec<usize>> {
    vec![vec![9, 14], vec![9], vec![20, 5], vec![70]]
}

fn start() -> Model {
    let tensor = |(number, shape): (usize, &Vec<usize>)| {
        (0..shape.iter().product()).map(|at: usize| (1.37 * at as f64 + number as f64).cos()).collect()
    };
    shapes().iter().enumerate().map(tensor).collect()
}

/// Returns the gradient of a rank at x: of a quadratic with its own curvature and minimum.
fn gradient(rank: usize, tensor: usize, at: usize, x: f64) -> f64 {
    // No two of similar size, so that f32 selects the same as f64.
    let minimum = 1.5 * (0.7317 * at as f64 + 1.913 * rank as f64 + 0.577 * tensor as f64).sin();
    (0.5 + 0.3 * rank as f64) * (x - minimum)
}

fn train<T: Element>(
    ranks: usize,
    rate: f64,
    algorithm: &AnyAlgorithm,
    of: fn(f64) -> T,
    to: fn(T) -> f64,
) -> Vec<Model> {
    spawn(TransportKind::Thread, ranks, |comm| {
        let optimizer = fitting(algorithm, Arc::new(Sgd::default()));
        let setup = Setup { learning_rate: rate, optimizer, ..Setup::default() };
        let initial: Vec<Vec<T>> =
            start().into_iter().map(|tensor| tensor.into_iter().map(of).collect()).collect();
        let mut trainer = Trainer::with_shapes(&comm, algorithm.clone(), setup, &initial, &shapes())?;
        for _ in 0..PERIOD * ROUNDS {
            trainer.step(|tensor, x| {
                let own = |(at, x): (usize, &T)| of(gradient(comm.rank(), tensor, at, to(*x)));
                x.iter().enumerate().map(own).collect()
            })?;
        }
        let found = trainer.parameters()?;
        Ok(found.into_iter().map(|tensor| tensor.into_iter().map(to).collect()).collect())
    })
    .unwrap()
}

/// Returns the final θ by the rule: `local` makes a step of a rank in a model, and `send` returns the received part of
/// the change of a rank in a tensor.
fn by_hand(
    ranks: usize,
    outer: Outer,
    mut local: impl FnMut(usize, u64, &mut Model),
    mut send: impl FnMut(usize, usize, Vec<f64>) -> Vec<f64>,
) -> Model {
    let mut theta = start();
    let mut velocity: Model = theta.iter().map(|tensor| vec![0.0; tensor.len()]).collect();
    for round in 0..ROUNDS {
        let mut mean: Model = theta.iter().map(|tensor| vec![0.0; tensor.len()]).collect();
        for rank in 0..ranks {
            let mut x = theta.clone();
            (round * PERIOD..(round + 1) * PERIOD).for_each(|step| local(rank, step, &mut x));
            for (tensor, x) in x.iter().enumerate() {
                let change = theta[tensor].iter().zip(x).map(|(theta, x)| theta - x).collect();
                let sent = send(rank, tensor, change);
                mean[tensor].iter_mut().zip(sent).for_each(|(mean, sent)| *mean += sent / ranks as f64);
            }
        }
        let elements = theta.iter_mut().zip(&mut velocity).zip(&mean);
        for ((theta, v), change) in elements.flat_map(|((t, v), c)| t.iter_mut().zip(v).zip(c)) {
            *v = outer.momentum * *v + change;
            *theta -= outer.learning_rate * (change + outer.momentum * *v);
        }
    }
    theta
}

fn assert_near(found: &[Model], expected: &Model, tolerance: f64, what: &str) {
    assert!(found.iter().all(|replica| replica == &found[0]), "{what}: replicas differ");
    let pairs = found[0].iter().flatten().zip(expected.iter().flatten());
    let furthest = pairs.map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
    assert!(furthest <= tolerance, "{what}: {furthest} off");
}

/// Error feedback of all ranks and tensors that keeps the `k` largest of every chunk of e.
struct Sparse {
    errors: Vec<Model>,
    kept: f64,
    share: f64,
    chunk: usize,
}

impl Sparse {
    fn new(ranks: usize, kept: f64, share: f64, chunk: usize) -> Self {
        let zeros: Model = start().iter().map(|tensor| vec![0.0; tensor.len()]).collect();
        Sparse { errors: vec![zeros; ranks], kept, share, chunk }
    }

    /// Returns the received part of a change, with `quantize` for the kept values; 0 elsewhere.
    fn send(
        &mut self,
        (rank, tensor): (usize, usize),
        change: &[f64],
        quantize: impl Fn(&[f64]) -> Vec<f64>,
    ) -> Vec<f64> {
        let e = &mut self.errors[rank][tensor];
        e.iter_mut().zip(change).for_each(|(e, change)| *e = self.kept * *e + change);
        let mut places = Vec::new();
        for (number, chunk) in e.chunks(self.chunk).enumerate() {
            let mut order: Vec<usize> = (0..chunk.len()).collect();
            order.sort_by(|a, b| chunk[*b].abs().total_cmp(&chunk[*a].abs()).then(a.cmp(b)));
            let k = (chunk.len() as f64 * self.share).ceil() as usize;
            places.extend(order[..k].iter().map(|at| number * self.chunk + at));
        }
        places.sort_unstable();
        let values: Vec<f64> = places.iter().map(|at| e[*at]).collect();
        let mut sent = vec![0.0; e.len()];
        places.iter().zip(quantize(&values)).for_each(|(at, value)| sent[*at] = value);
        e.iter_mut().zip(&sent).for_each(|(e, sent)| *e -= sent);
        sent
    }
}
