//! Stochastic gradient descent, with momentum and weight decay if asked for.
//!
//! ```text
//! d ← g + λ x                    λ: weight decay
//! u ← μ u + (1 − τ) d            μ: momentum, τ: dampening; u ← d in the first step
//! x ← x − γ u                    Nesterov: x ← x − γ (d + μ u)
//! ```
//!
//! Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013, in the
//! form of PyTorch's SGD, where γ multiplies all of u. State: u, one element for each parameter, if μ ≠ 0.

use super::real::Real;
use super::{Optimizer, Update, checked, with_float};
use crate::plugin::StepForm;
use hexagram_logical::Result;
use hexagram_logical::spelling::{Options, Spelled, truth};

/// Stochastic gradient descent: x ← x − γ u.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sgd {
    /// Momentum coefficient μ, in [0, 1). Default: 0.
    pub momentum: f64,
    /// Dampening τ of the momentum, in [0, 1). Default: 0.
    pub dampening: f64,
    /// True for Nesterov's momentum, which looks ahead. Default: false.
    pub nesterov: bool,
    /// Weight decay λ, at least 0. Default: 0.
    pub weight_decay: f64,
}

impl Spelled for Sgd {
    fn word(&self) -> &'static str {
        "sgd"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("momentum", &mut self.momentum, 0.0..1.0, "momentum coefficient")?;
        options.field("dampening", &mut self.dampening, 0.0..1.0, "dampening of the momentum")?;
        options.field("nesterov", &mut self.nesterov, truth(), "whether the momentum looks ahead")?;
        options.field("weight_decay", &mut self.weight_decay, 0.0.., "weight decay")?;
        let fits = !self.nesterov || (self.momentum > 0.0 && self.dampening == 0.0);
        options.insist(fits, "nesterov", &self.nesterov, "false, or a momentum above 0 and no dampening")
    }
}

impl Optimizer for Sgd {
    fn slots(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum"] }
    }

    fn form(&self) -> StepForm {
        match (self.momentum == 0.0, self.weight_decay == 0.0) {
            (true, true) => StepForm::Plain,
            (true, false) => StepForm::Decaying,
            (false, _) => StepForm::Other,
        }
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

impl Sgd {
    fn step_in<T: Real>(&self, update: Update<'_>) -> Result<()> {
        let momentum = T::of(self.momentum);
        let take = T::of(if update.step == 0 { 1.0 } else { 1.0 - self.dampening });
        let gradients = update.gradients.host::<T>()?;
        let mut parameters = update.parameters.host_mut::<T>()?;
        let mut slot = update.slots.first_mut().map(|slot| slot.host_mut::<T>()).transpose()?;
        for section in update.sections {
            let rate = T::of(update.learning_rate * section.learning_rate);
            let decay = T::of(self.weight_decay * section.weight_decay);
            let at = section.elements.clone();
            let elements = parameters[at.clone()].iter_mut().zip(&gradients[at.clone()]);
            let Some(slot) = &mut slot else {
                elements.for_each(|(x, g)| *x = *x - rate * (*g + decay * *x));
                continue;
            };
            for ((x, g), u) in elements.zip(&mut slot[at]) {
                let d = *g + decay * *x;
                *u = momentum * *u + take * d;
                *x = *x - rate * if self.nesterov { d + momentum * *u } else { *u };
            }
        }
        Ok(())
    }
}
