//! EF21 against the known decay on its counter-example, and against the reference.

use super::{MINIMUM, converged};
use hexagram_algorithms::ef21::{Ef21, Ef21Start};
use hexagram_algorithms::logical::codec::{Keep, TopK};
use hexagram_algorithms::logical::encoding::{Encoding, Feedback};
use hexagram_algorithms::logical::testing::{Reference, cases, spawn};
use hexagram_algorithms::logical::{ReduceOp, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use std::sync::Arc;

/// ∇fᵢ with fᵢ = ⟨aᵢ, x⟩² + ¼‖x‖², a₁ = (−3, 2, 2) and so on (Beznosikov et al. 2020, example 1).
fn gradient(rank: usize, x: &[f32]) -> Vec<f32> {
    let a: [f32; 3] = std::array::from_fn(|at| if at == rank { -3.0 } else { 2.0 });
    let product: f32 = a.iter().zip(x).map(|(a, x)| a * x).sum();
    a.iter().zip(x).map(|(a, x)| 2.0 * product * a + x / 2.0).collect()
}

#[test]
fn one_element_of_three_is_enough_where_it_alone_diverges() {
    let found = spawn(TransportKind::Thread, 3, |comm| {
        let rate = 0.005_859_121;
        let setup = Setup { learning_rate: rate, ..Setup::default() };
        let algorithm = Arc::new(Ef21 { fraction: 1.0 / 3.0, momentum: 0.0, start: Ef21Start::Gradient });
        let mut trainer = Trainer::new(&comm, algorithm, setup, &[vec![1.0f32; 3]])?;
        let mut norms = Vec::new();
        for _ in 0..1200 {
            trainer.step(|_, x| gradient(comm.rank(), x))?;
            norms.push(trainer.parameters()?[0].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt());
        }
        Ok(norms)
    });
    for norms in found.unwrap() {
        // Top-1 alone grows by 1 + 11γ/6 per step.
        let factor = (norms[1199] / norms[599]).powf(1.0 / 600.0);
        assert!((factor - 0.99312).abs() < 1e-4, "{factor} per step");
        assert!(norms[1199] < 1e-3, "{}", norms[1199]);
    }
}

/// Follows the header for one tensor in f64, with its own sort.
struct ByHand {
    keep: usize,
    momentum: f64,
    m: Vec<Vec<f64>>,
    h: Vec<Vec<f64>>,
}

impl ByHand {
    /// Returns the direction of a step with these gradients of the ranks; `first` is the start, in the first step.
    fn step(&mut self, gradients: &[Vec<f64>], first: Option<Ef21Start>) -> Vec<f64> {
        let beta = if first.is_some_and(|start| start != Ef21Start::Zero) { 0.0 } else { self.momentum };
        let known = first == Some(Ef21Start::Gradient);
        for ((m, h), g) in self.m.iter_mut().zip(&mut self.h).zip(gradients) {
            m.iter_mut().zip(g).for_each(|(m, g)| *m = beta * *m + (1.0 - beta) * g);
            let mut order: Vec<usize> = (0..m.len()).collect();
            order.sort_by(|a, b| (m[*b] - h[*b]).abs().total_cmp(&(m[*a] - h[*a]).abs()));
            let sent = if known { m.len() } else { self.keep };
            order[..sent].iter().for_each(|at| h[*at] = m[*at]);
        }
        let mean = |at: usize| self.h.iter().map(|h| h[at]).sum::<f64>() / self.h.len() as f64;
        (0..self.h[0].len()).map(mean).collect()
    }
}

#[test]
fn its_steps_are_those_computed_by_hand() {
    let rate = 0.03;
    let starts = [Ef21Start::Zero, Ef21Start::Compressed, Ef21Start::Gradient];
    for (momentum, start) in [0.0, 0.5].into_iter().flat_map(|momentum| starts.map(|start| (momentum, start)))
    {
        let found = spawn(TransportKind::Thread, 3, |comm| {
            let setup = Setup { learning_rate: rate, ..Setup::default() };
            let algorithm = Ef21 { fraction: 1.0 / 3.0, momentum, start };
            let mut trainer = Trainer::new(&comm, algorithm, setup, &[vec![1.0f32, 0.9, 1.2]])?;
            for _ in 0..12 {
                trainer.step(|_, x| gradient(comm.rank(), x))?;
            }
            Ok(trainer.parameters()?.remove(0))
        });
        let zeros = || vec![vec![0.0; 3]; 3];
        let mut by_hand = ByHand { keep: 1, momentum, m: zeros(), h: zeros() };
        let mut x = [1.0f64, 0.9, 1.2];
        for step in 0..12 {
            let point = x.map(|x| x as f32);
            let gradients = |rank| gradient(rank, &point).into_iter().map(f64::from).collect();
            let gradients: Vec<Vec<f64>> = (0..3).map(gradients).collect();
            let direction = by_hand.step(&gradients, (step == 0).then_some(start));
            x.iter_mut().zip(direction).for_each(|(x, h)| *x -= rate * h);
        }
        for found in found.unwrap() {
            let close = found.iter().zip(x).all(|(found, x)| (f64::from(*found) - x).abs() < 1e-5);
            assert!(close, "{found:?} and not {x:?}, with {momentum} and {start:?}");
        }
    }
}

#[test]
fn its_steps_are_those_of_the_reference_bit_for_bit() {
    let elements = 501;
    let steps = 5;
    let fraction = 0.1;
    let given = |rank: usize, step: usize, at: usize| ((at * 7 + rank * 31 + step * 13) % 101) as f32 - 50.0;
    for (transport, ranks) in cases(&[1, 2, 3]) {
        let found = spawn(transport, ranks, |comm| {
            let setup = Setup { learning_rate: 0.5, ..Setup::default() };
            let algorithm = Arc::new(Ef21 { fraction, momentum: 0.5, start: Ef21Start::Compressed });
            let mut trainer = Trainer::new(&comm, algorithm, setup, &[vec![0.0f32; elements]])?;
            for step in 0..steps {
                trainer.step(|_, x| (0..x.len()).map(|at| given(comm.rank(), step, at)).collect())?;
            }
            Ok(trainer.parameters()?.remove(0))
        });
        let codec = Arc::new(TopK::new(Keep::Ratio(fraction)).unwrap());
        let encoding = Encoding::new(codec).with_feedback(Feedback::Difference);
        let mut reference = Reference::new(&encoding, ranks, elements, ReduceOp::Mean);
        let mut m = vec![vec![0.0f32; elements]; ranks];
        let mut expected = vec![0.0f32; elements];
        for step in 0..steps {
            for (rank, m) in m.iter_mut().enumerate() {
                let kept = if step == 0 { 0.0 } else { 0.5 };
                m.iter_mut()
                    .enumerate()
                    .for_each(|(at, m)| *m = kept * *m + (1.0 - kept) * given(rank, step, at));
            }
            let h = reference.all_reduce_sparse(|rank| m[rank].clone()).unwrap();
            expected.iter_mut().zip(h).for_each(|(x, h)| *x -= 0.5 * h);
        }
        for (rank, found) in found.unwrap().iter().enumerate() {
            assert!(*found == expected, "rank {rank} of {ranks}, over {transport}");
        }
    }
}

#[test]
fn it_converges_with_any_data_hierarchically_too() {
    for hierarchical in [false, true] {
        let found = converged(&[0, 1, 1, 1], hierarchical, Ef21::default(), 1500, |_| 0.02);
        assert!(found.iter().all(|replica| *replica == found[0]));
        let near = found[0].iter().all(|x| (x - MINIMUM).abs() < 1e-3);
        assert!(near, "{:?}, hierarchical: {hierarchical}", found[0]);
    }
}
