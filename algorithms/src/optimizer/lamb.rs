//! LAMB: Adam whose step in each tensor is as long as the tensor.
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g          v ← β₂ v + (1 − β₂) g²
//! r ← (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε) + λ x       λ: weight decay, t: steps, this one included
//! x ← x − γ (‖x‖ / ‖r‖) r                                  norms of a tensor; 1 in place of the quotient if one is 0,
//!                                                          and for vectors and scalars
//! ```
//!
//! Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020 (arXiv
//! 1904.00962), with φ(z) = z. Its authors' code leaves biases and norms unscaled, which are vectors. State: m and v,
//! two elements for each parameter.

use super::adam::{Direction, SLOTS, moment_fields};
use super::real::{Real, norm};
use super::{Optimizer, Update, all_slots, checked, with_float};
use hexagram_logical::Result;
use hexagram_logical::spelling::{Options, Spelled, truth};

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

impl Spelled for Lamb {
    fn word(&self) -> &'static str {
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

impl Lamb {
    fn step_in<T: Real>(&self, update: Update<'_>) -> Result<()> {
        let direction = Direction::new((self.beta1, self.beta2), self.epsilon, update.step);
        let [first, second] = all_slots(update.slots)?;
        let gradients = update.gradients.host::<T>()?;
        let mut parameters = update.parameters.host_mut::<T>()?;
        let mut first = first.host_mut::<T>()?;
        let mut second = second.host_mut::<T>()?;
        let mut directions: Vec<T> = Vec::new();
        for section in update.sections {
            let rate = update.learning_rate * section.learning_rate;
            let decay = T::of(self.weight_decay * section.weight_decay);
            for tensor in &update.tensors[section.tensors.clone()] {
                let at = tensor.elements.clone();
                let moments = first[at.clone()].iter_mut().zip(&mut second[at.clone()]);
                let elements = parameters[at.clone()].iter().zip(&gradients[at.clone()]);
                directions.clear();
                directions.extend(
                    elements.zip(moments).map(|((x, g), (m, v))| direction.next(m, v, *g) + decay * *x),
                );
                let scaled = self.scale_vectors || tensor.shape.len() > 1;
                let quotient = if scaled { quotient(&parameters[at.clone()], &directions) } else { 1.0 };
                let rate = T::of(rate * quotient);
                parameters[at].iter_mut().zip(&directions).for_each(|(x, r)| *x = *x - rate * *r);
            }
        }
        Ok(())
    }
}

/// Returns the quotient of two norms; 1 if one of them is 0.
fn quotient<T: Real>(parameters: &[T], directions: &[T]) -> f64 {
    let parameters = norm(parameters);
    let directions = norm(directions);
    if parameters > 0.0 && directions > 0.0 { parameters / directions } else { 1.0 }
}
