//! LAMB: Adam with a step in each tensor that is as long as the tensor.
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g          v ← β₂ v + (1 − β₂) g²
//! r ← (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε) + λ x       λ: weight decay, t: number of steps, including this one
//! x ← x − γ (‖x‖ / ‖r‖) r                                  norms of a tensor; 1 instead of the quotient if one is 0,
//!                                                          and for vectors and scalars
//! ```
//!
//! Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020 (arXiv
//! 1904.00962), with φ(z) = z. The authors' code does not scale vectors (biases and norms). State: m and v, two
//! elements per parameter.

use super::adam::{AdamDirection, SLOTS, moment_fields};
use super::{Optimizer, Update, with_float};
#[cfg(feature = "cuda")]
use crate::elementwise::{name_for, runs};
use crate::float_ext::{FloatExt, norm};
use hexagram_logical::Result;
use hexagram_logical::device::kernels::widest;
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Argument, Code, Launch, Module, Program};
#[cfg(feature = "cuda")]
use hexagram_logical::device::sums::Sums;
use hexagram_logical::device::{Kernel, Operands};
use hexagram_logical::options_text::{NamedOptions, Options, truth};
use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "cuda")]
pub(super) static MODULE: Module = Module { name: "lamb", code: Code::Packed(hexagram_ptx::LAMB) };

/// Layer-wise adaptive moments, for large batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lamb {
    /// Decay β₁ of the first moment, in [0, 1). Default: 0.9.
    pub beta1: f64,
    /// Decay β₂ of the second moment, in [0, 1). Default: 0.999.
    pub beta2: f64,
    /// Constant ε in the denominator, at least 0. Default: 1e-6.
    pub epsilon: f64,
    /// Weight decay λ, at least 0. Default: 0.01.
    pub weight_decay: f64,
    /// True to scale vectors and scalars too. Default: false.
    pub scale_vectors: bool,
}

impl Default for Lamb {
    fn default() -> Self {
        Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01, scale_vectors: false }
    }
}

impl NamedOptions for Lamb {
    fn keyword(&self) -> &'static str {
        "lamb"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        moment_fields([&mut self.beta1, &mut self.beta2], &mut self.epsilon, options)?;
        options.field("weight_decay", &mut self.weight_decay, 0.0.., "weight decay")?;
        let about = "whether vectors and scalars are scaled, too";
        options.field("scale_vectors", &mut self.scale_vectors, truth(), about)
    }
}

impl Optimizer for Lamb {
    fn slots(&self) -> &'static [&'static str] {
        &SLOTS
    }

    fn weight_decay(&self) -> Option<f64> {
        Some(self.weight_decay)
    }

    fn with_weight_decay(&self, weight_decay: f64) -> Option<Arc<dyn Optimizer>> {
        Some(Arc::new(Self { weight_decay, ..*self }))
    }

    fn check(&self) -> Result<()> {
        NamedOptions::check(self)
    }

    fn spelled(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn step(&self, update: Update<'_>) -> Result<()> {
        with_float!(update.parameters.dtype(), T => {
            let direction = AdamDirection::<T>::new((self.beta1, self.beta2), self.epsilon, update.step);
            let tensors = update.by_tensor(|section, tensor, rate| TrustRatioStep {
                elements: tensor.elements.clone(),
                rate,
                decay: T::of(self.weight_decay * section.weight_decay),
                scaled: self.scale_vectors || tensor.shape.len() > 1,
            });
            update.run::<T, 3>(LambStep { direction, tensors })
        })
    }
}

/// The LAMB step on a bucket.
#[derive(Debug)]
struct LambStep<T> {
    direction: AdamDirection<T>,
    tensors: Vec<TrustRatioStep<T>>,
}

/// Step of one tensor.
#[derive(Debug)]
struct TrustRatioStep<T> {
    elements: Range<usize>,
    rate: f64,
    decay: T,
    /// True if the rate is multiplied by the quotient of norms.
    scaled: bool,
}

impl<T: FloatExt> Kernel for LambStep<T> {
    fn run(&self, operands: Operands<'_>) -> Result<()> {
        let ([gradients], [parameters, first, second]) = operands.all::<T, 1, 3>()?;
        let mut directions: Vec<T> = Vec::new();
        widest(|| {
            for TrustRatioStep { elements, rate, decay, scaled } in &self.tensors {
                let at = || elements.clone();
                let moments = first[at()].iter_mut().zip(&mut second[at()]);
                let each = parameters[at()].iter().zip(&gradients[at()]).zip(moments);
                directions.clear();
                directions.extend(each.map(|((x, g), (m, v))| self.direction.next(m, v, *g) + *decay * *x));
                let quotient = if *scaled { quotient(&parameters[at()], &directions) } else { 1.0 };
                let rate = T::of(rate * quotient);
                let pairs = parameters[at()].iter_mut().zip(&directions);
                pairs.for_each(|(x, r)| *x = (*x - rate * *r).canonical());
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn program(&self) -> Option<Program> {
        let mut launches = Vec::new();
        let mut scratch = 0;
        for tensor in self.tensors.iter().filter(|tensor| !tensor.elements.is_empty()) {
            // The sums of both norms come first in the scratch memory.
            let norms = Argument::Scratch(0);
            let len = tensor.elements.len();
            let sums = Sums::new("lamb_sums", 2, len, norms, 16);
            scratch = scratch.max(sums.scratch);
            let runs = |from| runs::<T>(from..4, &tensor.elements).chain([Argument::U64(len as u64)]);
            let shared = || [tensor.decay.argument()].into_iter().chain(self.direction.arguments());
            let entry = name_for::<T>(["lamb_moments_f32", "lamb_moments_f64"]);
            let arguments = runs(0).chain(shared()).chain([sums.blocks]);
            launches.push(Launch::summing(entry, len, arguments.collect()));
            launches.extend(sums.launches.into_iter().filter(|_| tensor.scaled));
            let entry = name_for::<T>(["lamb_step_f32", "lamb_step_f64"]);
            let rate = [Argument::F64(tensor.rate), Argument::U32(tensor.scaled.into()), norms];
            launches.push(Launch::over(entry, len, runs(1).chain(shared()).chain(rate).collect()));
        }
        Some(Program::in_turn(&MODULE, launches, scratch))
    }
}

/// Returns the quotient of two norms; 1 if one of them is 0.
fn quotient<T: FloatExt>(parameters: &[T], directions: &[T]) -> f64 {
    let parameters = norm(parameters);
    let directions = norm(directions);
    if parameters > 0.0 && directions > 0.0 { parameters / directions } else { 1.0 }
}
