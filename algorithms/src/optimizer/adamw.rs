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
use super::real::Real;
use super::{Optimizer, Update, all_slots, checked, with_float};
use hexagram_logical::Result;
use hexagram_logical::spelling::{Options, Spelled};

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
        with_float!(update.parameters.dtype(), T => self.step_in::<T>(update))
    }
}

impl AdamW {
    fn step_in<T: Real>(&self, update: Update<'_>) -> Result<()> {
        let direction = Direction::new((self.beta1, self.beta2), self.epsilon, update.step);
        let [first, second] = all_slots(update.slots)?;
        let gradients = update.gradients.host::<T>()?;
        let mut parameters = update.parameters.host_mut::<T>()?;
        let mut first = first.host_mut::<T>()?;
        let mut second = second.host_mut::<T>()?;
        for section in update.sections {
            let rate = update.learning_rate * section.learning_rate;
            let keep = 1.0 - rate * self.weight_decay * section.weight_decay;
            let at = section.elements.clone();
            let x = &mut parameters[at.clone()];
            let moments = (&mut first[at.clone()], &mut second[at.clone()]);
            decayed_step(&direction, (rate, keep), x, moments, &gradients[at]);
        }
        Ok(())
    }
}

/// Makes AdamW's step on some elements: `x ← keep · x − rate · direction`.
pub(super) fn decayed_step<T: Real>(
    direction: &Direction<T>,
    (rate, keep): (f64, f64),
    parameters: &mut [T],
    (first, second): (&mut [T], &mut [T]),
    gradients: &[T],
) {
    let rate = T::of(rate);
    let keep = T::of(keep);
    let moments = first.iter_mut().zip(second);
    for ((x, g), (m, v)) in parameters.iter_mut().zip(gradients).zip(moments) {
        *x = keep * *x - rate * direction.next(m, v, *g);
    }
}
