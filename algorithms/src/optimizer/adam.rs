//! Adam with decoupled weight decay: AdamW.
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g          v ← β₂ v + (1 − β₂) g²
//! x ← x − γ λ x                  λ: weight decay
//! x ← x − γ (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)       t: steps, this one included
//! ```
//!
//! Sources: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
//! State: m and v, two elements for each parameter.

use super::{Optimizer, Update, insist, with_float};
use hexagram_logical::Result;

/// AdamW; without weight decay, Adam.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// Decay β₁ of the first moment, in [0, 1).
    pub beta1: f64,
    /// Decay β₂ of the second moment, in [0, 1).
    pub beta2: f64,
    /// Constant ε in the denominator, above 0.
    pub epsilon: f64,
    /// Weight decay λ, at least 0.
    pub weight_decay: f64,
}

impl Default for Adam {
    fn default() -> Self {
        Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

impl Optimizer for Adam {
    fn slots(&self) -> &'static [&'static str] {
        &["first-moment", "second-moment"]
    }

    fn check(&self) -> Result<()> {
        let Adam { beta1, beta2, epsilon, weight_decay } = *self;
        let fractions = [beta1, beta2].iter().all(|beta| (0.0..1.0).contains(beta));
        insist(fractions, self, "use β₁ and β₂ of at least 0 and below 1")?;
        let sizes = [epsilon, weight_decay].iter().all(|size| size.is_finite() && *size >= 0.0);
        insist(sizes, self, "use ε and a weight decay of at least 0")
    }

    fn step(&self, update: Update<'_>) -> Result<()> {
        let Update { step, learning_rate, gradients, parameters, slots } = update;
        let [first, second] = slots else {
            return Err(hexagram_logical::Error::usage("Adam has two slots", "give it those that it names"));
        };
        let t = (step + 1) as f64;
        let unbias1 = 1.0 - self.beta1.powf(t);
        let unbias2 = 1.0 - self.beta2.powf(t);
        with_float!(parameters.dtype(), T => {
            let beta1 = self.beta1 as T;
            let beta2 = self.beta2 as T;
            let epsilon = self.epsilon as T;
            let rate = (learning_rate / unbias1) as T;
            let keep = (1.0 - learning_rate * self.weight_decay) as T;
            let root = (1.0 / unbias2).sqrt() as T;
            let gradients = gradients.host::<T>()?;
            let mut parameters = parameters.host_mut::<T>()?;
            let mut first = first.host_mut::<T>()?;
            let mut second = second.host_mut::<T>()?;
            let moments = first.iter_mut().zip(second.iter_mut());
            for ((x, (m, v)), g) in parameters.iter_mut().zip(moments).zip(gradients.iter()) {
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                *x = keep * *x - rate * *m / (v.sqrt() * root + epsilon);
            }
            Ok(())
        })
    }
}
