//! Lion: every element moves by γ, along the sign of a momentum.
//!
//! ```text
//! c ← β₁ m + (1 − β₁) g
//! x ← x − γ λ x                  λ: weight decay
//! x ← x − γ sgn(c)               sgn(0) = 0
//! m ← β₂ m + (1 − β₂) g
//! ```
//!
//! Source: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023 (arXiv 2302.06675), which
//! recommends a learning rate 3 to 10 times lower than that of AdamW, and a weight decay higher by the same factor.
//! State: m, one element per parameter.

use super::{Optimizer, Update, with_float};
use crate::elementwise::Elementwise;
#[cfg(feature = "cuda")]
use crate::elementwise::{KernelEntry, name_for};
use crate::float_ext::FloatExt;
use hexagram_logical::Result;
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Code, Module};
use hexagram_logical::options_text::{NamedOptions, Options};
use std::sync::Arc;

#[cfg(feature = "cuda")]
pub(super) static MODULE: Module = Module { name: "lion", code: Code::Packed(hexagram_ptx::LION) };

/// Steps by the sign of a momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lion {
    /// Weight β₁ of the momentum in the direction, in [0, 1). Default: 0.9.
    pub beta1: f64,
    /// Decay β₂ of the momentum, in [0, 1). Default: 0.99.
    pub beta2: f64,
    /// Weight decay λ, at least 0. Default: 0.
    pub weight_decay: f64,
}

impl Default for Lion {
    fn default() -> Self {
        Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }
}

impl NamedOptions for Lion {
    fn keyword(&self) -> &'static str {
        "lion"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("beta1", &mut self.beta1, 0.0..1.0, "weight of the momentum in the direction")?;
        options.field("beta2", &mut self.beta2, 0.0..1.0, "decay of the momentum")?;
        options.field("weight_decay", &mut self.weight_decay, 0.0.., "weight decay")
    }
}

impl Optimizer for Lion {
    fn slots(&self) -> &'static [&'static str] {
        &["momentum"]
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
        with_float!(update.parameters.dtype(), T => update.step_elements(|section, rate| BySign::<T> {
            rate: T::of(rate),
            keep: T::of(1.0 - rate * self.weight_decay * section.weight_decay),
            weight: [self.beta1, 1.0 - self.beta1].map(T::of),
            decay: [self.beta2, 1.0 - self.beta2].map(T::of),
        }))
    }
}

/// The Lion step on some elements.
#[derive(Debug)]
struct BySign<T> {
    rate: T,
    keep: T,
    /// Weights of momentum and gradient in the direction.
    weight: [T; 2],
    /// Weights of momentum and gradient in the next momentum.
    decay: [T; 2],
}

impl<T: FloatExt> Elementwise<T, 1, 2> for BySign<T> {
    #[inline(always)]
    fn run(&self, [gradients]: [&[T]; 1], [parameters, momentum]: [&mut [T]; 2]) {
        for ((x, g), m) in parameters.iter_mut().zip(gradients).zip(momentum) {
            let direction = self.weight[0] * *m + self.weight[1] * *g;
            *x = (self.keep * *x - signed(self.rate, direction)).canonical();
            *m = (self.decay[0] * *m + self.decay[1] * *g).canonical();
        }
    }

    #[cfg(feature = "cuda")]
    fn entry(&self) -> KernelEntry {
        let scalars = [&[self.rate, self.keep], &self.weight, &self.decay];
        let scalars = scalars.into_iter().flatten().map(|scalar| scalar.argument()).collect();
        KernelEntry { module: &MODULE, name: name_for::<T>(["lion_step_f32", "lion_step_f64"]), scalars }
    }
}

/// Returns a size with the sign of another number; 0 if that is zero.
#[inline]
fn signed<T: FloatExt>(size: T, of: T) -> T {
    if of > T::ZERO {
        size
    } else if of < T::ZERO {
        -size
    } else {
        of
    }
}
