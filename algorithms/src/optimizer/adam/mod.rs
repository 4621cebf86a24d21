//! Adam and AdamW: steps along the first moment of the gradient, divided by the root of the second. The weight decay of
//! Adam is part of the gradient; that of AdamW acts only on the parameters.
//!
//! ```text
//! Adam: g ← g + λ x              AdamW: x ← x − γ λ x                      λ: weight decay
//! m ← β₁ m + (1 − β₁) g          v ← β₂ v + (1 − β₂) g²
//! x ← x − γ (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)       t: number of steps, including this one
//! ```
//!
//! Sources: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR
//! 2019; both in the form of PyTorch. State: m and v, two elements per parameter.

use super::{Optimizer, Update, with_float};
use crate::elementwise::Elementwise;
#[cfg(feature = "cuda")]
use crate::elementwise::{KernelEntry, name_for};
use crate::float_ext::FloatExt;
use hexagram_logical::Result;
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Argument, Code, Launch, Module};
use hexagram_logical::options_text::{NamedOptions, Options};
use std::sync::Arc;

/// Modules of the steps of Adam and AdamW.
#[cfg(feature = "cuda")]
pub(super) static MODULES: [Module; 2] = [
    Module { name: "adam", code: Code::Packed(hexagram_ptx::ADAM) },
    Module { name: "adamw", code: Code::Packed(hexagram_ptx::ADAMW) },
];

/// Adam, with L2 regularization as its weight decay; none by default.
pub type Adam = AdaptiveMoments<false>;

/// Adam with decoupled weight decay; 0.01 by default.
pub type AdamW = AdaptiveMoments<true>;

/// [`Adam`], or [`AdamW`] if the weight decay is decoupled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveMoments<const DECOUPLED: bool> {
    /// Decay β₁ of the first moment, in [0, 1). Default: 0.9.
    pub beta1: f64,
    /// Decay β₂ of the second moment, in [0, 1). Default: 0.999.
    pub beta2: f64,
    /// Constant ε in the denominator, at least 0. Default: 1e-8.
    pub epsilon: f64,
    /// Weight decay λ, at least 0.
    pub weight_decay: f64,
}

impl<const DECOUPLED: bool> Default for AdaptiveMoments<DECOUPLED> {
    fn default() -> Self {
        let weight_decay = if DECOUPLED { 0.01 } else { 0.0 };
        AdaptiveMoments { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay }
    }
}

impl<const DECOUPLED: bool> NamedOptions for AdaptiveMoments<DECOUPLED> {
    fn keyword(&self) -> &'static str {
        if DECOUPLED { "adamw" } else { "adam" }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        moment_fields([&mut self.beta1, &mut self.beta2], &mut self.epsilon, options)?;
        let about = if DECOUPLED { "weight decay" } else { "L2 regularization" };
        options.field("weight_decay", &mut self.weight_decay, 0.0.., about)
    }
}

impl<const DECOUPLED: bool> Optimizer for AdaptiveMoments<DECOUPLED> {
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
            let direction = AdamDirection::new((self.beta1, self.beta2), self.epsilon, update.step);
            update.step_elements(|section, rate| {
                let decay = self.weight_decay * section.weight_decay;
                let decay = T::of(if DECOUPLED { 1.0 - rate * decay } else { decay });
                AdamStep::<T, DECOUPLED> { direction, rate: T::of(rate), decay }
            })
        })
    }
}

/// Step of Adam or AdamW on some elements.
#[derive(Debug)]
pub(super) struct AdamStep<T, const DECOUPLED: bool> {
    pub(super) direction: AdamDirection<T>,
    pub(super) rate: T,
    /// Adam: weight of the parameter in the gradient. AdamW: factor of the parameter.
    pub(super) decay: T,
}

#[cfg(feature = "cuda")]
impl<T: FloatExt> AdamStep<T, true> {
    /// Returns the launch of a step of `len` elements, which begin at these indices of the operands: gradients, parameters and
    /// both moments.
    pub(super) fn launch(&self, starts: [usize; 4], len: usize) -> Launch {
        let KernelEntry { name, scalars, .. } = self.entry();
        let operand = |(operand, start)| Argument::OperandAt(operand, start * size_of::<T>());
        let operands = starts.into_iter().enumerate().map(operand);
        let arguments = operands.chain([Argument::U64(len as u64)]).chain(scalars);
        Launch::over(name, len, arguments.collect())
    }
}

impl<T: FloatExt, const DECOUPLED: bool> Elementwise<T, 1, 3> for AdamStep<T, DECOUPLED> {
    #[inline(always)]
    fn run(&self, [gradients]: [&[T]; 1], [parameters, first, second]: [&mut [T]; 3]) {
        let moments = first.iter_mut().zip(second);
        for ((x, g), (m, v)) in parameters.iter_mut().zip(gradients).zip(moments) {
            let (kept, gradient) = if DECOUPLED { (self.decay * *x, *g) } else { (*x, *g + self.decay * *x) };
            *x = (kept - self.rate * self.direction.next(m, v, gradient)).canonical();
        }
    }

    #[cfg(feature = "cuda")]
    fn entry(&self) -> KernelEntry {
        const NAMES: [[&str; 2]; 2] =
            [["adam_step_f32", "adam_step_f64"], ["adamw_step_f32", "adamw_step_f64"]];
        let own = [self.rate, self.decay].map(T::argument);
        let scalars = own.into_iter().chain(self.direction.arguments()).collect();
        let which = usize::from(DECOUPLED);
        KernelEntry { module: &MODULES[which], name: name_for::<T>(NAMES[which]), scalars }
    }
}

/// Names of the moments of Adam.
pub(super) const SLOTS: [&str; 2] = ["first-moment", "second-moment"];

/// Declares the constants of the Adam direction among the options of an optimizer.
pub(super) fn moment_fields(
    [beta1, beta2]: [&mut f64; 2],
    epsilon: &mut f64,
    options: &mut Options,
) -> Result<()> {
    options.field("beta1", beta1, 0.0..1.0, "decay of the first moment")?;
    options.field("beta2", beta2, 0.0..1.0, "decay of the second moment")?;
    options.field("epsilon", epsilon, 0.0.., "constant in the denominator")
}

/// Direction of Adam in one step, in the type of the parameters, which [`Adam`] and related optimizers share.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdamDirection<T> {
    beta1: T,
    take1: T,
    beta2: T,
    take2: T,
    unbias: T,
    root: T,
    epsilon: T,
}

impl<T: FloatExt> AdamDirection<T> {
    /// Creates the direction with decays β₁ and β₂ and constant ε, after `step` steps.
    pub(super) fn new((beta1, beta2): (f64, f64), epsilon: f64, step: u64) -> Self {
        let t = (step + 1) as f64;
        AdamDirection {
            beta1: T::of(beta1),
            take1: T::of(1.0 - beta1),
            beta2: T::of(beta2),
            take2: T::of(1.0 - beta2),
            unbias: T::of(1.0 / (1.0 - beta1.powf(t))),
            root: T::of((1.0 / (1.0 - beta2.powf(t))).sqrt()),
            epsilon: T::of(epsilon),
        }
    }

    /// Updates the moments of an element by its gradient, and returns its direction, of size about 1.
    #[inline(always)]
    pub(super) fn next(&self, m: &mut T, v: &mut T, g: T) -> T {
        *m = (self.beta1 * *m + self.take1 * g).canonical();
        *v = (self.beta2 * *v + self.take2 * g * g).canonical();
        self.unbias * *m / (v.root() * self.root + self.epsilon)
    }

    /// Returns the arguments for `DIRECTION` in `physical/cuda/direction.cuh`.
    #[cfg(feature = "cuda")]
    pub(super) fn arguments(&self) -> [Argument; 7] {
        let AdamDirection { beta1, take1, beta2, take2, unbias, root, epsilon } = *self;
        [beta1, take1, beta2, take2, unbias, root, epsilon].map(T::argument)
    }
}
