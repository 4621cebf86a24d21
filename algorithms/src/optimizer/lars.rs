//! LARS: momentum SGD whose step in each tensor is in proportion to the tensor's length.
//!
//! ```text
//! q ← η ‖x‖ / (‖g‖ + λ ‖x‖ + ε)       norms of a tensor, λ: weight decay; q = 1 if ‖x‖ or ‖g‖ is 0, and for vectors and
//!                                      scalars
//! u ← μ u + γ q (g + λ x)             μ: momentum
//! x ← x − u                           Nesterov: x ← x − (μ u + γ q (g + λ x))
//! ```
//!
//! Source: You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017 (arXiv 1708.03888). γ is part of
//! u, so that a change of γ acts on what is added from there on. Common implementations leave biases and norms unscaled,
//! which are vectors. State: u, one element for each parameter.

use super::real::{Real, norm};
use super::{Optimizer, Update, all_slots, check_fraction, check_size, with_float};
use crate::plugin::check_option;
use hexagram_logical::Result;

/// Layer-wise adaptive rate scaling, for large batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lars {
    /// Momentum coefficient μ, in [0, 1). Default: 0.9.
    pub momentum: f64,
    /// True for Nesterov's momentum, which looks ahead. Default: false.
    pub nesterov: bool,
    /// Weight decay λ, at least 0. Default: 0.
    pub weight_decay: f64,
    /// Trust coefficient η, above 0: the length of a step, as a share of the tensor's, at γ = 1. Default: 0.001.
    pub trust: f64,
    /// Constant ε in the denominator, at least 0. Default: 0.
    pub epsilon: f64,
    /// True to scale vectors and scalars too. Default: false.
    pub scale_vectors: bool,
}

impl Default for Lars {
    fn default() -> Self {
        Lars {
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
            trust: 0.001,
            epsilon: 0.0,
            scale_vectors: false,
        }
    }
}

impl Optimizer for Lars {
    fn slots(&self) -> &'static [&'static str] {
        &["momentum"]
    }

    fn check(&self) -> Result<()> {
        check_fraction("momentum of lars", self.momentum)?;
        check_size("weight_decay of lars", self.weight_decay)?;
        let positive = self.trust.is_finite() && self.trust > 0.0;
        check_option(positive, "trust of lars", &self.trust, "something above 0")?;
        check_size("epsilon of lars", self.epsilon)
    }

    fn step(&self, update: Update<'_>) -> Result<()> {
        with_float!(update.parameters.dtype(), T => self.step_in::<T>(update))
    }
}

impl Lars {
    fn step_in<T: Real>(&self, update: Update<'_>) -> Result<()> {
        let momentum = T::of(self.momentum);
        let [slot] = all_slots(update.slots)?;
        let gradients = update.gradients.host::<T>()?;
        let mut parameters = update.parameters.host_mut::<T>()?;
        let mut slot = slot.host_mut::<T>()?;
        for section in update.sections {
            let rate = update.learning_rate * section.learning_rate;
            let decay = self.weight_decay * section.weight_decay;
            for tensor in &update.tensors[section.tensors.clone()] {
                let at = tensor.elements.clone();
                let x = &mut parameters[at.clone()];
                let g = &gradients[at.clone()];
                let scaled = self.scale_vectors || tensor.shape.len() > 1;
                let rate = T::of(if scaled { rate * self.quotient(x, g, decay) } else { rate });
                let decay = T::of(decay);
                for ((x, g), u) in x.iter_mut().zip(g).zip(&mut slot[at]) {
                    let d = rate * (*g + decay * *x);
                    *u = momentum * *u + d;
                    *x = *x - if self.nesterov { momentum * *u + d } else { *u };
                }
            }
        }
        Ok(())
    }

    /// Returns the factor q of a tensor's learning rate.
    fn quotient<T: Real>(&self, parameters: &[T], gradients: &[T], decay: f64) -> f64 {
        let parameters = norm(parameters);
        let gradients = norm(gradients);
        if parameters > 0.0 && gradients > 0.0 {
            self.trust * parameters / (gradients + decay * parameters + self.epsilon)
        } else {
            1.0
        }
    }
}
