//! AdamW: Adam whose weight decay acts on the parameters alone.
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g          v ← β₂ v + (1 − β₂) g²
//! x ← x − γ λ x                  λ: weight decay
//! x ← x − γ (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)       t: steps, this one included
//! ```
//!
//! Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, in the form of PyTorch's AdamW.
//! State: m and v, two elements for each parameter.

use super::adam::{Direction, SLOTS, moment_fields};
use super::{Optimizer, Update, checked, with_float};
use crate::elementwise::Elementwise;
#[cfg(feature = "cuda")]
use crate::elementwise::{Entry, name_for};
use crate::real::Real;
use hexagram_logical::Result;
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Argument, Code, Launch, Module};
use hexagram_logical::spelling::{Options, Spelled};

#[cfg(feature = "cuda")]
pub(super) static MODULE: Module = Module { name: "adamw", code: Code::Packed(hexagram_ptx::ADAMW) };

/// Adam with decoupled weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay β₁ of the first moment, in [0, 1). Default: 0.9.
    pub beta1: f64,
    /// Decay β₂ of the second moment, in [0, 1). Default: 0.999.
    pub beta2: f64,
    /// Constant ε in the denominator, at least 0. Default: 1e-8.
    pub epsilon: f64,
    /// Weight decay λ, at least 0. Default: 0.01.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl Spelled for AdamW {
    fn word(&self) -> &'static str {
        "adamw"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        moment_fields([&mut self.beta1, &mut self.beta2], &mut self.epsilon, options)?;
        options.field("weight_decay", &mut self.weight_decay, 0.0.., "weight decay")
    }
}

impl Optimizer for AdamW {
    fn slots(&self) -> &'static [&'static str] {
        &SLOTS
    }

    fn check(&self) -> Result<()> {
        checked(self)
    }

    fn spelled(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn step(&self, update: Update<'_>) -> Result<()> {
        with_float!(update.parameters.dtype(), T => {
            let direction = Direction::new((self.beta1, self.beta2), self.epsilon, update.step);
            update.step_elements(|section, rate| Decoupled::<T> {
                direction,
                rate: T::of(rate),
                keep: T::of(1.0 - rate * self.weight_decay * section.weight_decay),
            })
        })
    }
}

/// AdamW's step on some elements: `x ← keep · x − rate · direction`.
#[derive(Debug)]
pub(super) struct Decoupled<T> {
    pub(super) direction: Direction<T>,
    pub(super) rate: T,
    pub(super) keep: T,
}

#[cfg(feature = "cuda")]
impl<T: Real> Decoupled<T> {
    /// Returns the launch that steps `len` elements from some places on in the operands: gradients, parameters and both
    /// moments.
    pub(super) fn launch(&self, starts: [usize; 4], len: usize) -> Launch {
        let Entry { name, scalars, .. } = self.entry();
        let operand = |(operand, start)| Argument::OperandAt(operand, start * size_of::<T>());
        let operands = starts.into_iter().enumerate().map(operand);
        let arguments = operands.chain([Argument::U64(len as u64)]).chain(scalars);
        Launch::over(name, len, arguments.collect())
    }
}

impl<T: Real> Elementwise<T, 1, 3> for Decoupled<T> {
    #[inline(always)]
    fn run(&self, [gradients]: [&[T]; 1], [parameters, first, second]: [&mut [T]; 3]) {
        let moments = first.iter_mut().zip(second);
        for ((x, g), (m, v)) in parameters.iter_mut().zip(gradients).zip(moments) {
            *x = (self.keep * *x - self.rate * self.direction.next(m, v, *g)).canonical();
        }
    }

    #[cfg(feature = "cuda")]
    fn entry(&self) -> Entry {
        let own = [self.rate, self.keep].map(T::argument);
        let scalars = own.into_iter().chain(self.direction.arguments()).collect();
        Entry { module: &MODULE, name: name_for::<T>(["adamw_step_f32", "adamw_step_f64"]), scalars }
    }
}
