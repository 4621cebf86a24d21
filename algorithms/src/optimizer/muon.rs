//! Muon: matrices move along the orthogonal matrix that is nearest to their momentum, other parameters as AdamW has
//! them.
//!
//! ```text
//! m ← μ m + (1 − μ) g            μ: momentum
//! d ← (1 − μ) g + μ m            Nesterov; otherwise d ← m
//! x ← x − γ λ x                  λ: weight decay
//! x ← x − γ s O(d)               O: Newton–Schulz; s = √max(1, rows / columns), or 0.2 √max(rows, columns)
//! ```
//!
//! Matrices are tensors of two dimensions or more, all but the first taken together. O sets all singular values to
//! about 1. The default s gives a step the size of AdamW's, so that both rules share γ and λ. Embeddings and the last
//! layer, whose rows are no directions of one space, are better named in [`Muon::except`].
//!
//! Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; the second s is of Liu et
//! al., "Muon is scalable for LLM training", 2025 (arXiv 2502.16982). As PyTorch's Muon but for O's arithmetic, which
//! is that of the parameters and not bf16. State: m, one element for each parameter of a matrix; AdamW's two for the
//! others. The host makes the steps: a device's gradients and parameters are copied to it, and back.

use super::adam::{Direction, SLOTS};
use super::adamw::Decoupled;
use super::group::matches;
use super::newton_schulz::orthogonalize;
use super::{AdamW, Optimizer, Update, all_slots, checked, with_float};
use crate::elementwise::Elementwise;
use crate::plugin::Tensor;
use crate::real::Real;
use hexagram_logical::Result;
use hexagram_logical::runtime::Work;
use hexagram_logical::spelling::{Options, Spelled, one_of, part, truth};

/// Steps by orthogonalized momenta, and by AdamW where there are no matrices.
#[derive(Debug, Clone, PartialEq)]
pub struct Muon {
    /// Momentum coefficient μ, in [0, 1). Default: 0.95.
    pub momentum: f64,
    /// True for Nesterov's momentum, which looks ahead. Default: true.
    pub nesterov: bool,
    /// Weight decay λ of the matrices, at least 0. Default: 0.1.
    pub weight_decay: f64,
    /// Number of rounds of the Newton–Schulz iteration, 1 to 100. Default: 5.
    pub rounds: u32,
    /// Factor s of the step. Default: [`MuonScale::MatchAdamW`].
    pub scale: MuonScale,
    /// Names of matrices that are stepped as the other parameters are; `*` stands for any characters. It is no
    /// part of the spelling. Default: none.
    pub except: Vec<String>,
    /// Rule of the parameters that are no matrices. Default: β₂ = 0.95, a weight decay of 0.1, and otherwise AdamW's.
    pub rest: AdamW,
}

/// Factor s of [`Muon`]'s step in a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MuonScale {
    /// √max(1, rows / columns): a step that changes a layer's output alike whatever its shape.
    Original,
    /// 0.2 √max(rows, columns): a step whose root mean square is that of AdamW's.
    #[default]
    MatchAdamW,
}

impl Default for Muon {
    fn default() -> Self {
        Muon {
            momentum: 0.95,
            nesterov: true,
            weight_decay: 0.1,
            rounds: 5,
            scale: MuonScale::MatchAdamW,
            except: Vec::new(),
            rest: AdamW { beta2: 0.95, weight_decay: 0.1, ..AdamW::default() },
        }
    }
}

impl Spelled for Muon {
    fn word(&self) -> &'static str {
        "muon"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("momentum", &mut self.momentum, 0.0..1.0, "momentum coefficient")?;
        options.field("nesterov", &mut self.nesterov, truth(), "whether the momentum looks ahead")?;
        options.field("weight_decay", &mut self.weight_decay, 0.0.., "weight decay of the matrices")?;
        options.field("rounds", &mut self.rounds, 1..=100, "rounds of the Newton–Schulz iteration")?;
        let scales = [("original", MuonScale::Original), ("match-adamw", MuonScale::MatchAdamW)];
        options.field("scale", &mut self.scale, one_of(&scales), "size of a step in a matrix")?;
        options.field("rest", &mut self.rest, part(), "rule of the parameters that are no matrices")
    }
}

impl Optimizer for Muon {
    fn slots(&self) -> &'static [&'static str] {
        &SLOTS
    }

    fn slot_len(&self, slot: &str, tensor: &Tensor) -> usize {
        if slot == SLOTS[1] && self.matrix(tensor).is_some() { 0 } else { tensor.elements.len() }
    }

    fn check(&self) -> Result<()> {
        checked(self)
    }

    fn spelled(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn step(&self, update: Update<'_>) -> Result<()> {
        with_float!(update.parameters.dtype(), T => self.step_in::<T>(update))
    }
}

impl Muon {
    /// Returns rows and columns of a tensor that is stepped as a matrix.
    fn matrix(&self, tensor: &Tensor) -> Option<(usize, usize)> {
        let excepted = || self.except.iter().any(|pattern| matches(pattern, &tensor.name));
        tensor.matrix().filter(|_| !excepted())
    }

    fn step_in<T: Real>(&self, update: Update<'_>) -> Result<()> {
        let rest = self.rest;
        let direction = Direction::new((rest.beta1, rest.beta2), rest.epsilon, update.step);
        let [first, second] = all_slots(update.slots)?;
        let queue = update.parameters.queue();
        let elements = update.parameters.len() + first.len() + second.len();
        queue.computes(|| Work::Kernel { bytes: 2 * elements * size_of::<T>() });
        if !queue.computes(|| Work::Product { operations: self.operations(update.tensors) }) {
            return Ok(());
        }
        let gradients = update.gradients.host::<T>()?;
        let mut parameters = update.parameters.host_mut::<T>()?;
        let mut first = first.host_mut::<T>()?;
        let mut second = &mut *second.host_mut::<T>()?;
        for section in update.sections {
            let rate = update.learning_rate * section.learning_rate;
            for tensor in &update.tensors[section.tensors.clone()] {
                let at = tensor.elements.clone();
                let x = &mut parameters[at.clone()];
                let m = &mut first[at.clone()];
                let g = &gradients[at];
                if let Some(shape) = self.matrix(tensor) {
                    let keep = 1.0 - rate * self.weight_decay * section.weight_decay;
                    self.matrix_step(shape, (rate, keep), x, m, g);
                } else {
                    let keep = 1.0 - rate * rest.weight_decay * section.weight_decay;
                    let (v, others) = std::mem::take(&mut second).split_at_mut(tensor.elements.len());
                    second = others;
                    let step = Decoupled { direction, rate: T::of(rate), keep: T::of(keep) };
                    step.run([g], [x, m, v]);
                }
            }
        }
        Ok(())
    }

    /// Returns the multiplications and additions that making all matrices orthogonal takes: in each round, of the
    /// shorter side r and the longer side c, two products of r² c and one of r³.
    fn operations(&self, tensors: &[Tensor]) -> u64 {
        let of_matrix = |(rows, columns): (usize, usize)| {
            let short = rows.min(columns) as u64;
            let long = rows.max(columns) as u64;
            2 * u64::from(self.rounds) * short * short * (2 * long + short)
        };
        tensors.iter().filter_map(|tensor| self.matrix(tensor)).map(of_matrix).sum()
    }

    /// Makes the step in a matrix.
    fn matrix_step<T: Real>(
        &self,
        (rows, columns): (usize, usize),
        (rate, keep): (f64, f64),
        parameters: &mut [T],
        momentum: &mut [T],
        gradients: &[T],
    ) {
        let decay = T::of(self.momentum);
        let take = T::of(1.0 - self.momentum);
        let mut direction: Vec<T> = Vec::with_capacity(gradients.len());
        for (m, g) in momentum.iter_mut().zip(gradients) {
            *m = decay * *m + take * *g;
            direction.push(if self.nesterov { take * *g + decay * *m } else { *m });
        }
        orthogonalize(&mut direction, (rows, columns), self.rounds);
        let scale = match self.scale {
            MuonScale::Original => (rows as f64 / columns as f64).max(1.0).sqrt(),
            MuonScale::MatchAdamW => 0.2 * (rows.max(columns) as f64).sqrt(),
        };
        let rate = T::of(rate * scale);
        let keep = T::of(keep);
        parameters.iter_mut().zip(&direction).for_each(|(x, d)| *x = keep * *x - rate * *d);
    }
}
