//! Lion: every element moves by γ, along the sign of a momentum.
//!
//! ```text
//! c ← β₁ m + (1 − β₁) g
//! x ← x − γ λ x                  λ: weight decay
//! x ← x − γ sgn(c)               sgn(0) = 0
//! m ← β₂ m + (1 − β₂) g
//! ```
//!
//! Source: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023 (arXiv 2302.06675), which advises
//! a learning rate 3 to 10 times lower than AdamW's and a weight decay as many times higher. State: m, one element for
//! each parameter.

use super::real::Real;
use super::{Optimizer, Update, all_slots, checked, with_float};
use hexagram_logical::Result;
use hexagram_logical::spelling::{Options, Spelled};

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

impl Spelled for Lion {
    fn word(&self) -> &'static str {
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

impl Lion {
    fn step_in<T: Real>(&self, update: Update<'_>) -> Result<()> {
        let weight = [T::of(self.beta1), T::of(1.0 - self.beta1)];
        let decay = [T::of(self.beta2), T::of(1.0 - self.beta2)];
        let [slot] = all_slots(update.slots)?;
        let gradients = update.gradients.host::<T>()?;
        let mut parameters = update.parameters.host_mut::<T>()?;
        let mut slot = slot.host_mut::<T>()?;
        for section in update.sections {
            let rate = update.learning_rate * section.learning_rate;
            let keep = T::of(1.0 - rate * self.weight_decay * section.weight_decay);
            let rate = T::of(rate);
            let at = section.elements.clone();
            let elements = parameters[at.clone()].iter_mut().zip(&gradients[at.clone()]);
            for ((x, g), m) in elements.zip(&mut slot[at]) {
                *x = keep * *x - signed(rate, weight[0] * *m + weight[1] * *g);
                *m = decay[0] * *m + decay[1] * *g;
            }
        }
        Ok(())
    }
}

/// Returns a size with the sign of another number; 0 for one that has none.
#[inline]
fn signed<T: Real>(size: T, of: T) -> T {
    if of > T::ZERO {
        size
    } else if of < T::ZERO {
        -size
    } else {
        of
    }
}
