//! Dion against steps of one machine with the mean gradient in f64, and against singular vectors.

use crate::replicas::{Made, Run, furthest, optimum, pull};
use hexagram_algorithms::dion::Dion;
use hexagram_algorithms::logical::codec::factors::give_direction;
use hexagram_algorithms::logical::encoding::mix;
use hexagram_algorithms::logical::testing::{cases, spawn};
use hexagram_algorithms::logical::{Result, TransportKind, hash};
use hexagram_algorithms::testing::{Setup, Trainer};
use std::sync::Barrier;

fn made(dion: Dion) -> impl Fn() -> Made + Sync {
    move || dion.into()
}

/// Returns a number between −1 and 1 for each place.
fn noise(what: usize) -> f32 {
    let word = (what as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Matrix of one machine, in row-major order, in f64 and without low rank except in the rule.
struct Single {
    rows: usize,
    cols: usize,
    momentum: Vec<f64>,
    /// Columns of Q.
    right: Vec<Vec<f64>>,
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

fn unit(x: &[f64]) -> Vec<f64> {
    let length = dot(x, x).sqrt();
    x.iter().map(|x| x / length).collect()
}

impl Single {
    fn new(name: &str, (rows, cols): (usize, usize), rank: usize) -> Self {
        let seed = hash::of_bytes(hash::START, name.bytes());
        let column = |c: usize| {
            let mut q = vec![0.0f32; cols];
            give_direction(&mut q, mix(seed ^ mix(c as u64)));
            q.into_iter().map(f64::from).collect()
        };
        Single { rows, cols, momentum: vec![0.0; rows * cols], right: (0..rank).map(column).collect() }
    }

    /// Returns the direction of a step for a gradient.
    fn step(&mut self, gradient: &[f64], momentum: f64) -> Vec<f64> {
        let Single { rows, cols, momentum: m, right } = self;
        m.iter_mut().zip(gradient).for_each(|(m, g)| *m += g);
        let mut left: Vec<Vec<f64>> = Vec::new();
        for q in right.iter() {
            let mut p: Vec<f64> = m.chunks(*cols).map(|row| dot(row, q)).collect();
            for other in &left {
                let along = dot(other, &p);
                p.iter_mut().zip(other).for_each(|(p, other)| *p -= along * other);
            }
            left.push(unit(&p));
        }
        let back =
            |p: &Vec<f64>| (0..*cols).map(|c| (0..*rows).map(|r| m[r * *cols + c] * p[r]).sum()).collect();
        let found: Vec<Vec<f64>> = left.iter().map(back).collect();
        let product = |right: &[Vec<f64>], at: usize| -> f64 {
            left.iter().zip(right).map(|(p, q)| p[at / *cols] * q[at % *cols]).sum()
        };
        let used = |at: usize| (1.0 - momentum) * product(&found, at);
        m.iter_mut().enumerate().for_each(|(at, m)| *m -= used(at));
        *right = found.iter().map(|r| unit(r)).collect();
        let scale = (*rows as f64 / *cols as f64).sqrt();
        (0..m.len()).map(|at| scale * product(right, at)).collect()
    }
}

#[test]
fn its_steps_are_those_of_one_machine_with_the_mean_gradient() {
    // A matrix in factors of rank 3, one of three dimensions in factors of rank 2, one whose factors are not smaller,
    // and a vector.
    let shapes = [vec![8, 6], vec![4, 3, 5], vec![4, 4], vec![7]];
    let dion = Dion { fraction: 0.5, momentum: 0.8, beta1: 0.7, beta2: 0.6 };
    let ranks = 3;
    let gradient = |rank: usize, step: usize, tensor: usize, at: usize| {
        noise(at + 100 * (tensor + 4 * (step + 20 * rank))) + 2.0 * rank as f32 - 2.0
    };
    let initial = shapes.clone().map(|shape| vec![0.5f32; shape.iter().product()]);
    let found = spawn(TransportKind::Thread, ranks, |comm| {
        let mut trainer = Trainer::with_shapes(&comm, dion, Setup::default(), &initial, &shapes)?;
        for step in 0..12 {
            trainer
                .step(|tensor, x| (0..x.len()).map(|at| gradient(comm.rank(), step, tensor, at)).collect())?;
        }
        trainer.parameters()
    });
    let found = found.unwrap();
    assert!(found.iter().all(|replica| *replica == found[0]));
    let mut matrices =
        [Single::new("p0", (8, 6), 3), Single::new("p1", (4, 15), 2), Single::new("p2", (4, 4), 2)];
    let mut expected = initial.map(|tensor| tensor.into_iter().map(f64::from).collect::<Vec<f64>>());
    let mut lion = [0.0; 7];
    for step in 0..12 {
        let mean = |tensor: usize, at: usize| {
            (0..ranks).map(|rank| f64::from(gradient(rank, step, tensor, at))).sum::<f64>() / ranks as f64
        };
        for (tensor, matrix) in matrices.iter_mut().enumerate() {
            let all: Vec<f64> = (0..expected[tensor].len()).map(|at| mean(tensor, at)).collect();
            let direction = matrix.step(&all, dion.momentum);
            expected[tensor].iter_mut().zip(direction).for_each(|(x, d)| *x -= 0.1 * d);
        }
        for (at, m) in lion.iter_mut().enumerate() {
            expected[3][at] -= 0.1 * (0.7 * *m + (1.0 - 0.7) * mean(3, at)).signum();
            *m = 0.6 * *m + (1.0 - 0.6) * mean(3, at);
        }
    }
    for (found, expected) in found[0].iter().zip(expected) {
        let expected: Vec<f32> = expected.into_iter().map(|x| x as f32).collect();
        let error = furthest(found, &expected);
        assert!(error < 1e-5, "{error}");
    }
}

#[test]
fn at_full_rank_a_lasting_gradient_is_stepped_along_its_singular_vectors() {
    // Singular values 3, 1 and 0.5, on the diagonal.
    let gradient = |_: usize, _: usize, x: &[f32]| {
        let mut g = vec![0.0; x.len()];
        [3.0, 1.0, 0.5].into_iter().enumerate().for_each(|(at, value)| g[at * 4 + at] = value);
        g
    };
    let after = |steps| {
        let run = Run { ranks: 2, shape: vec![3, 4], steps, ..Run::default() };
        run.train(made(Dion { fraction: 1.0, ..Dion::default() }), gradient).remove(0)
    };
    let before = after(60);
    let found = after(61);
    for at in 0..12 {
        let expected = if at % 5 == 0 { 0.1 * 0.75f32.sqrt() } else { 0.0 };
        let moved = before[at] - found[at];
        assert!((moved - expected).abs() < 1e-5, "{at}: {moved} and not {expected}");
    }
}

/// Returns the length of the momentum of a rank.
fn momentum(trainer: &mut Trainer<f32>) -> Result<f64> {
    let record = trainer.engine().checkpoint().save()?;
    let saved = record.tensors().find(|(name, _)| name.ends_with("momentum")).unwrap().1;
    let squares = saved.values.host::<f32>()?.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    Ok(squares.sqrt())
}

#[test]
fn momenta_of_ranks_that_differ_for_long_do_not_grow() {
    // Every rank has its own minimum, 100 away from that of the mean: its momentum would grow by that in each step if
    // the mean of R were subtracted.
    let grown = spawn(TransportKind::Thread, 3, |comm| {
        let initial = [vec![0.0f32; 240]];
        let shape = [vec![12, 20]];
        let dion = Dion { momentum: 0.5, ..Dion::default() };
        let mut trainer = Trainer::with_shapes(&comm, dion, Setup::default(), &initial, &shape)?;
        let mut lengths = Vec::new();
        for step in 0..240 {
            trainer.engine().set_learning_rate(8.0 * 0.96f64.powi(step));
            trainer.step(|_, x| pull(comm.rank(), 0, x))?;
            if [79, 239].contains(&step) {
                lengths.push(momentum(&mut trainer)?);
            }
        }
        Ok(lengths[1] / lengths[0])
    });
    let grown = grown.unwrap();
    assert!(grown.iter().all(|factor| *factor < 1.5), "{grown:?}");
}

#[test]
fn replicas_stay_identical_and_come_to_the_optimum() {
    for (transport, ranks) in cases(&[1, 3]) {
        let rate = |step: usize| 8.0 * 0.95f64.powi(step as i32);
        let run = Run { transport, ranks, shape: vec![12, 20], rate, steps: 120, ..Run::default() };
        let found = run.train(made(Dion { fraction: 0.5, momentum: 0.6, ..Dion::default() }), pull);
        assert!(found.iter().all(|replica| *replica == found[0]), "{transport} × {ranks}");
        let error = furthest(&found[0], &optimum(ranks, 240));
        assert!(error < 0.3, "{transport} × {ranks}: {error}");
    }
}

#[test]
fn without_a_gradient_nothing_moves_and_what_comes_later_is_followed() {
    let gradient = |_: usize, step: usize, x: &[f32]| vec![if step < 3 { 0.0 } else { 1.0 }; x.len()];
    let run = Run { ranks: 2, shape: vec![6, 5], ..Run::default() };
    let still = Run { steps: 3, shape: vec![6, 5], ..run };
    assert_eq!(still.train(made(Dion::default()), gradient)[0], [0.0; 30]);
    let moved = Run { steps: 4, ..still }.train(made(Dion::default()), gradient).remove(0);
    // The direction has rank 1: the step has length √(rows / columns).
    let length = moved.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length - 0.1 * 1.2f32.sqrt()).abs() < 1e-5, "{length}");
}

#[test]
fn a_gradient_that_is_not_a_number_ends_the_training_and_names_tensor_and_rank() {
    let shapes = [vec![4, 3], vec![5]];
    let initial = shapes.clone().map(|shape| vec![0.0f32; shape.iter().product()]);
    for broken in [0, 1] {
        let opened = Barrier::new(3);
        let refused = spawn(TransportKind::Thread, 3, |comm| {
            let mut trainer =
                Trainer::with_shapes(&comm, Dion::default(), Setup::default(), &initial, &shapes)?;
            opened.wait();
            let step = trainer.step(|tensor, x| {
                let mut gradient = vec![1.0; x.len()];
                if comm.rank() == 1 && tensor == broken {
                    gradient[2] = f32::NAN;
                }
                gradient
            });
            Ok(step.unwrap_err().to_string())
        });
        let refused = refused.unwrap();
        let said = format!("element 2 of the gradient of `p{broken}` is NaN on rank 1");
        assert!(refused[1].contains(&said), "{refused:?}");
        assert!(refused.iter().all(|error| error.contains("rank 1")), "{refused:?}");
    }
}
