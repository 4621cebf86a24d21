//! Muon: matrices move along the orthogonal matrix nearest to their momentum, other parameters as with AdamW.
//!
//! ```text
//! m ← μ m + (1 − μ) g            μ: momentum
//! d ← (1 − μ) g + μ m            Nesterov; otherwise d ← m
//! x ← x − γ λ x                  λ: weight decay
//! x ← x − γ s O(d)               O: Newton–Schulz; s = √max(1, rows / columns), or 0.2 √max(rows, columns)
//! ```
//!
//! Matrices are tensors of two dimensions or more, all but the first taken together. O sets all singular values to
//! about 1. With the default s, a step has the size of an AdamW step, so that both rules share γ and λ. List embeddings
//! and the last layer in [`Muon::except`], as their rows are not directions of one space.
//!
//! Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; the second s is from Liu et
//! al., "Muon is scalable for LLM training", 2025 (arXiv 2502.16982). Like Muon of PyTorch, except that O is computed
//! in the type of the parameters, not in bf16. State: m, one element per parameter of a matrix; two for the others, as
//! AdamW.
//!
//! Temporary memory of a step, where m ≤ n are the sides of the largest matrix of a bucket: at most 4 m n + m² elements
//! on the host. On a GPU it is 2 m n + m², and 8 bytes per 4096 elements, for each queue; the engine has eight.

#[cfg(feature = "cuda")]
pub(super) mod cuda;
mod newton_schulz;

use super::adam::{AdamDirection, AdamStep, SLOTS};
use super::group::matches;
use super::{AdamW, Optimizer, Update, with_float};
use crate::elementwise::{self, Elementwise};
use crate::float_ext::FloatExt;
use crate::plugin::Tensor;
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::Program;
use hexagram_logical::device::{Kernel, Operands};
use hexagram_logical::options_text::{NamedOptions, Options, one_of, part, truth};
use hexagram_logical::runtime::Work;
use hexagram_logical::{Error, Result};
use newton_schulz::orthogonalize;
use std::ops::Range;
use std::sync::Arc;

/// Steps by orthogonalized momenta, and by AdamW for parameters that are not matrices.
#[derive(Debug, Clone, PartialEq)]
pub struct Muon {
    /// Momentum coefficient μ, in [0, 1). Default: 0.95.
    pub momentum: f64,
    /// True for Nesterov momentum, which looks ahead. Default: true.
    pub nesterov: bool,
    /// Weight decay λ of the matrices, at least 0. Default: 0.1.
    pub weight_decay: f64,
    /// Number of rounds of the Newton–Schulz iteration, 1 to 100. Default: 5.
    pub rounds: u32,
    /// Factor s of the step. Default: [`MuonScale::MatchAdamW`].
    pub scale: MuonScale,
    /// Names of matrices that are stepped like the other parameters; `*` stands for any characters. Not part of the
    /// spelling. Default: none.
    pub except: Vec<String>,
    /// Rule for parameters that are not matrices. Default: AdamW with β₂ = 0.95 and a weight decay of 0.1.
    pub rest: AdamW,
}

/// Factor s of the [`Muon`] step of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MuonScale {
    /// √max(1, rows / columns): the output of a layer changes by the same amount for any shape.
    Original,
    /// 0.2 √max(rows, columns): the step has the root mean square of an AdamW step.
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

impl NamedOptions for Muon {
    fn keyword(&self) -> &'static str {
        "muon"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("momentum", &mut self.momentum, 0.0..1.0, "momentum coefficient")?;
        options.field("nesterov", &mut self.nesterov, truth(), "whether the momentum looks ahead")?;
        options.field("weight_decay", &mut self.weight_decay, 0.0.., "weight decay of the matrices")?;
        options.field("rounds", &mut self.rounds, 1..=100, "rounds of the Newton–Schulz iteration")?;
        let scales = [("original", MuonScale::Original), ("match-adamw", MuonScale::MatchAdamW)];
        options.field("scale", &mut self.scale, one_of(&scales), "size of a step in a matrix")?;
        options.field("rest", &mut self.rest, part(), "rule of the parameters that are not matrices")
    }
}

impl Optimizer for Muon {
    fn slots(&self) -> &'static [&'static str] {
        &SLOTS
    }

    fn slot_len(&self, slot: &str, tensor: &Tensor) -> usize {
        if slot == SLOTS[1] && self.matrix(tensor).is_some() { 0 } else { tensor.elements.len() }
    }

    fn weight_decay(&self) -> Option<f64> {
        (self.weight_decay == self.rest.weight_decay).then_some(self.weight_decay)
    }

    fn with_weight_decay(&self, weight_decay: f64) -> Option<Arc<dyn Optimizer>> {
        let rest = AdamW { weight_decay, ..self.rest };
        Some(Arc::new(Self { weight_decay, rest, ..self.clone() }))
    }

    fn check(&self) -> Result<()> {
        NamedOptions::check(self)
    }

    fn spelled(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn step(&self, update: Update<'_>) -> Result<()> {
        with_float!(update.parameters.dtype(), T => self.step_in::<T>(update))
    }
}

impl Muon {
    /// Returns the numbers of rows and columns of a tensor that is stepped as a matrix.
    fn matrix(&self, tensor: &Tensor) -> Option<(usize, usize)> {
        let excepted = || self.except.iter().any(|pattern| matches(pattern, &tensor.name));
        tensor.matrix().filter(|_| !excepted())
    }

    fn step_in<T: FloatExt>(&self, update: Update<'_>) -> Result<()> {
        let rest = self.rest;
        let direction = AdamDirection::new((rest.beta1, rest.beta2), rest.epsilon, update.step);
        let tensors = update.by_tensor(|section, tensor, rate| {
            let keep = |decay: f64| T::of(1.0 - rate * decay * section.weight_decay);
            let rule = match self.matrix(tensor) {
                Some(shape) => TensorRule::Matrix(MatrixStep {
                    shape,
                    rate: T::of(rate * self.factor(shape)),
                    keep: keep(self.weight_decay),
                }),
                None => TensorRule::Other(AdamStep {
                    direction,
                    rate: T::of(rate),
                    decay: keep(rest.weight_decay),
                }),
            };
            (tensor.elements.clone(), rule)
        });
        let decay = T::of(self.momentum);
        let take = T::of(1.0 - self.momentum);
        let kernel = MuonStep { decay, take, nesterov: self.nesterov, rounds: self.rounds, tensors };
        self.run(kernel, &update)
    }

    /// Runs a step on the buffers of a bucket; its second slot contains nothing for matrices.
    fn run<T: FloatExt>(&self, kernel: MuonStep<T>, update: &Update<'_>) -> Result<()> {
        let written @ [parameters, first, second] = update.written()?;
        let len = elementwise::alike::<T>(&[update.gradients], &[parameters, first])?;
        elementwise::within(len, update.tensors.iter().map(|tensor| &tensor.elements))?;
        let others = kernel.tensors.iter().filter(|(_, rule)| matches!(rule, TensorRule::Other(_)));
        let others: usize = others.map(|(elements, _)| elements.len()).sum();
        if elementwise::alike::<T>(&[second], &[])? < others {
            let what = format!("{others} elements have a {} of {}", SLOTS[1], second.len());
            return Err(Error::usage(what, "pass one with all tensors that are not matrices"));
        }
        let queue = parameters.queue();
        // Written memory is also read; the kernel launch counts only one of the two.
        queue.computes(|| Work::Kernel { bytes: (first.len() + second.len()) * size_of::<T>() });
        queue.computes(|| Work::Product { operations: self.operations(update.tensors) });
        elementwise::run(Arc::new(kernel), &[update.gradients], &written)
    }

    /// Returns the factor s of a matrix.
    fn factor(&self, (rows, columns): (usize, usize)) -> f64 {
        match self.scale {
            MuonScale::Original => (rows as f64 / columns as f64).max(1.0).sqrt(),
            MuonScale::MatchAdamW => 0.2 * (rows.max(columns) as f64).sqrt(),
        }
    }

    /// Returns the number of multiplications and additions for the orthogonalization of all matrices: in each round,
    /// with the shorter side r and the longer side c, two products of r² c and one of r³.
    fn operations(&self, tensors: &[Tensor]) -> u64 {
        let of_matrix = |(rows, columns): (usize, usize)| {
            let short = rows.min(columns) as u64;
            let long = rows.max(columns) as u64;
            2 * u64::from(self.rounds) * short * short * (2 * long + short)
        };
        tensors.iter().filter_map(|tensor| self.matrix(tensor)).map(of_matrix).sum()
    }
}

/// The Muon step on a bucket.
#[derive(Debug)]
struct MuonStep<T> {
    /// Momentum coefficient μ, and 1 − μ.
    decay: T,
    take: T,
    nesterov: bool,
    rounds: u32,
    tensors: Vec<(Range<usize>, TensorRule<T>)>,
}

/// Rule of one tensor.
#[derive(Debug)]
enum TensorRule<T> {
    /// Step of a matrix.
    Matrix(MatrixStep<T>),
    /// Step by AdamW.
    Other(AdamStep<T, true>),
}

/// Step of a matrix, by its direction: `x ← keep · x − rate · O(d)`.
#[derive(Debug)]
struct MatrixStep<T> {
    /// Rows and columns.
    shape: (usize, usize),
    rate: T,
    keep: T,
}

impl<T: FloatExt> Kernel for MuonStep<T> {
    fn run(&self, operands: Operands<'_>) -> Result<()> {
        let ([gradients], [parameters, first, mut second]) = operands.all::<T, 1, 3>()?;
        for (elements, rule) in &self.tensors {
            let x = &mut parameters[elements.clone()];
            let m = &mut first[elements.clone()];
            let g = &gradients[elements.clone()];
            match rule {
                TensorRule::Matrix(matrix) => self.matrix_step(matrix, x, m, g),
                TensorRule::Other(rule) => {
                    let (v, others) = std::mem::take(&mut second).split_at_mut(elements.len());
                    second = others;
                    rule.run([g], [x, m, v]);
                }
            }
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn program(&self) -> Option<Program> {
        Some(cuda::program(self))
    }
}

impl<T: FloatExt> MuonStep<T> {
    /// Makes the step of a matrix.
    fn matrix_step(&self, matrix: &MatrixStep<T>, parameters: &mut [T], momentum: &mut [T], gradients: &[T]) {
        let MuonStep { decay, take, .. } = *self;
        let mut direction: Vec<T> = Vec::with_capacity(gradients.len());
        for (m, g) in momentum.iter_mut().zip(gradients) {
            *m = (decay * *m + take * *g).canonical();
            direction.push(if self.nesterov { take * *g + decay * *m } else { *m });
        }
        orthogonalize(&mut direction, matrix.shape, self.rounds);
        let pairs = parameters.iter_mut().zip(&direction);
        pairs.for_each(|(x, d)| *x = (matrix.keep * *x - matrix.rate * *d).canonical());
    }
}
