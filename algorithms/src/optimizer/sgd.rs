//! Stochastic gradient descent, with momentum and weight decay if asked for.
//!
//! ```text
//! d ← g + λ x                    λ: weight decay
//! u ← μ u + d                    μ: momentum
//! x ← x − γ u                    Nesterov: x ← x − γ (d + μ u)
//! ```
//!
//! Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013, in the form
//! of PyTorch's SGD, where γ multiplies all of u. State: u, one element for each parameter, if μ ≠ 0.

use super::{Optimizer, Update, insist, with_float};
use hexagram_logical::Result;

/// Stochastic gradient descent: x ← x − γ u.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sgd {
    /// Momentum coefficient μ, in [0, 1). Default: 0.
    pub momentum: f64,
    /// True for Nesterov's momentum, which looks ahead. Default: false.
    pub nesterov: bool,
    /// Weight decay λ, at least 0. Default: 0.
    pub weight_decay: f64,
}

impl Optimizer for Sgd {
    fn slots(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum"] }
    }

    fn check(&self) -> Result<()> {
        let Sgd { momentum, nesterov, weight_decay } = *self;
        insist((0.0..1.0).contains(&momentum), self, "use a momentum of at least 0 and below 1")?;
        insist(!nesterov || momentum > 0.0, self, "Nesterov's needs a momentum above 0")?;
        insist(weight_decay.is_finite() && weight_decay >= 0.0, self, "use a weight decay of at least 0")
    }

    fn step(&self, update: Update<'_>) -> Result<()> {
        let Update { learning_rate, gradients, parameters, slots, .. } = update;
        with_float!(parameters.dtype(), T => {
            let lr = learning_rate as T;
            let momentum = self.momentum as T;
            let decay = self.weight_decay as T;
            let gradients = gradients.host::<T>()?;
            let mut parameters = parameters.host_mut::<T>()?;
            let Some(slot) = slots.first_mut() else {
                for (x, g) in parameters.iter_mut().zip(gradients.iter()) {
                    *x -= lr * (g + decay * *x);
                }
                return Ok(());
            };
            let mut slot = slot.host_mut::<T>()?;
            let elements = parameters.iter_mut().zip(slot.iter_mut()).zip(gradients.iter());
            for ((x, u), g) in elements {
                let d = g + decay * *x;
                *u = momentum * *u + d;
                *x -= lr * if self.nesterov { d + momentum * *u } else { *u };
            }
            Ok(())
        })
    }
}
