//! Shared code of the tests of one-bit Adams: gradients, replicas that step with them, and their rule in f64.

use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Error, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{Adam, AnyAlgorithm, Frozen, GradientAllReduce};
use std::sync::Arc;

/// A gradient that differs between all ranks, steps and elements.
pub(crate) fn gradient(rank: usize, step: usize, at: usize) -> f32 {
    ((at * 7 + rank * 31 + step * 13) % 101) as f32 / 50.0 - 0.9
}

/// A replica after `steps` steps, γ = 0.01, from all zeros.
pub(crate) fn train(
    comm: &Communicator,
    algorithm: impl Into<AnyAlgorithm>,
    setup: Setup,
    (elements, steps): (usize, usize),
    gradient: impl Fn(usize, usize, usize) -> f32,
) -> Result<Vec<f32>, Error> {
    let setup = Setup { learning_rate: 0.01, ..setup };
    let mut trainer = Trainer::new(comm, algorithm, setup, &[vec![0.0f32; elements]])?;
    for step in 0..steps {
        trainer.step(|_, x| (0..x.len()).map(|at| gradient(comm.rank(), step, at)).collect())?;
    }
    Ok(trainer.parameters()?.remove(0))
}

/// Asserts that an algorithm makes the steps of Adam with the mean gradient.
pub(crate) fn assert_is_adam<A: Into<AnyAlgorithm> + Clone + Sync>(algorithm: A) {
    spawn(TransportKind::Thread, 3, |comm| {
        let adam = Setup { optimizer: Arc::new(Adam::default()), ..Setup::default() };
        let size = (1000, 50);
        let ours = train(&comm, algorithm.clone(), Setup::default(), size, gradient)?;
        let adams = train(&comm, Arc::new(GradientAllReduce), adam, size, gradient)?;
        for (ours, adams) in ours.iter().zip(&adams) {
            assert!((ours - adams).abs() < 4e-6, "{ours} and not {adams}");
        }
        Ok(())
    })
    .unwrap();
}

/// A gradient whose mean over ranks is never near 0, except that every eighth element has none before `begin`; its size
/// differs by a factor of 50 between elements.
pub(crate) fn uneven(begin: usize) -> impl Fn(usize, usize, usize) -> f32 {
    move |rank, step, at| match at % 8 {
        0 if step < begin => 0.0,
        which => {
            (gradient(rank, step, at) + 1.5)
                * (-1.0f32).powi(at as i32 / 3)
                * 10.0f32.powf(which as f32 / -4.0)
        }
    }
}

/// Moments of Adam for a model of one tensor, in f64, as in arXiv 2102.02888.
pub(crate) struct Rule {
    pub beta1: f64,
    pub beta2: f64,
    pub frozen: Frozen,
    pub m: Vec<f64>,
    pub v: Vec<f64>,
    pub d: Vec<f64>,
    pub updates: i32,
}

impl Rule {
    pub(crate) fn new(elements: usize, beta1: f64, beta2: f64, frozen: Frozen) -> Self {
        let zeros = || vec![0.0; elements];
        Rule { beta1, beta2, frozen, m: zeros(), v: zeros(), d: zeros(), updates: 0 }
    }

    /// Takes in an exact gradient, and freezes D.
    pub(crate) fn exact(&mut self, g: &[f64]) {
        self.updates += 1;
        let rows = self.m.iter_mut().zip(&mut self.v).zip(g);
        for ((m, v), g) in rows {
            *m = self.beta1 * *m + (1.0 - self.beta1) * g;
            *v = self.beta2 * *v + (1.0 - self.beta2) * g * g;
        }
        let unbias = 1.0 - self.beta2.powi(self.updates);
        let mean = self.v.iter().sum::<f64>() / self.v.len() as f64 / unbias;
        let least = self.frozen.floor * mean.sqrt();
        let d = |v: &f64| match (v / unbias).sqrt().max(least) {
            0.0 => 0.0,
            root => 1.0 / (root + 1e-8),
        };
        self.d = self.v.iter().map(d).collect();
    }

    /// Returns a gradient as it enters the moment: masked and clipped.
    pub(crate) fn limited(&self, at: usize, g: f64) -> f64 {
        match self.d[at] {
            0.0 => 0.0,
            d => {
                let clip = self.frozen.clip.unwrap_or(f64::INFINITY);
                (d * g).clamp(-clip, clip) / d
            }
        }
    }

    /// Returns the factor between an element and its encoded value.
    pub(crate) fn unit(&self, at: usize) -> f64 {
        if self.frozen.scaled { self.d[at] } else { 1.0 }
    }

    /// Returns the remainder of an element after its decoded value is subtracted.
    pub(crate) fn decoded(&self, at: usize, encoded: f32) -> f64 {
        if self.d[at] == 0.0 { 0.0 } else { f64::from(encoded) / self.unit(at) }
    }

    /// Returns the direction of Adam in step `t`, counted from 1.
    pub(crate) fn direction(&self, t: usize, at: usize, m: f64) -> f64 {
        self.d[at] * m / (1.0 - self.beta1.powi(t as i32))
    }
}

/// Fails unless a replica equals the rule, up to the rounding of f32.
pub(crate) fn assert_close(found: &[f32], x: &[f64], what: &str) {
    for (at, (found, x)) in found.iter().zip(x).enumerate() {
        let off = (f64::from(*found) - x).abs();
        assert!(off < 2e-5 * (1.0 + x.abs()), "{what}, element {at}: {found} and not {x}");
    }
}
