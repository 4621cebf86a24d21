//! LARS: momentum SGD whose step in each tensor is in proportion to the tensor's length.
//!
//! ```text
//! q ← η ‖x‖ / (‖g‖ + λ ‖x‖ + ε)       norms of a tensor, λ: weight decay; q = 1 if ‖x‖ or ‖g‖ is 0,
//!                                      and for vectors and scalars
//! u ← μ u + γ q (g + λ x)             μ: momentum
//! x ← x − u                           Nesterov: x ← x − (μ u + γ q (g + λ x))
//! ```
//!
//! Source: You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017 (arXiv 1708.03888). γ is
//! part of u, so that a change of γ acts on what is added from there on. Common implementations leave biases and norms
//! unscaled, which are vectors. State: u, one element for each parameter.

use super::real::{Real, norm};
use super::{Optimizer, Update, all_slots, checked, with_float};
use hexagram_logical::Result;
use hexagram_logical::spelling::{Options, Spelled, above, truth};

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

impl Spelled for Lars {
    fn word(&self) -> &'static str {
        "lars"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("momentum", &mut self.momentum, 0.0..1.0, "momentum coefficient")?;
        options.field("nesterov", &mut self.nesterov, truth(), "whether the momentum looks ahead")?;
        options.field("weight_decay", &mut self.weight_decay, 0.0.., "weight decay")?;
        options.field(
            "trust",
            &mut self.trust,
            above(0.0),
            "length of a step, as a share of the tensor's",
        )?;
        options.field("epsilon", &mut self.epsilon, 0.0.., "constant in the denominator")?;
        let about = "whether vectors and scalars are scaled, too";
        options.field("scale_vectors", &mut self.scale_vectors, truth(), about)
    }
}

impl Optimizer for Lars {
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
