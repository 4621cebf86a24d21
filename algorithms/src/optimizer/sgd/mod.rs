//! Stochastic gradient descent, optionally with momentum and weight decay.
//!
//! ```text
//! d ← g + λ x                    λ: weight decay
//! u ← μ u + (1 − τ) d            μ: momentum, τ: dampening; u ← d in the first step
//! x ← x − γ u                    Nesterov: x ← x − γ (d + μ u)
//! ```
//!
//! Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013, in the
//! form of SGD in PyTorch, where γ multiplies all of u. State: u, one element per parameter, if μ ≠ 0.

use super::{Optimizer, Section, Update, with_float};
use crate::elementwise::Elementwise;
#[cfg(feature = "cuda")]
use crate::elementwise::{KernelEntry, name_for};
use crate::float_ext::FloatExt;
use crate::plugin::StepForm;
use hexagram_logical::Result;
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Argument, Code, Module};
use hexagram_logical::options_text::{NamedOptions, Options, truth};
use std::sync::Arc;

/// Stochastic gradient descent: x ← x − γ u.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sgd {
    /// Momentum coefficient μ, in [0, 1). Default: 0.
    pub momentum: f64,
    /// Dampening τ of the momentum, in [0, 1). Default: 0.
    pub dampening: f64,
    /// True for Nesterov momentum, which looks ahead. Default: false.
    pub nesterov: bool,
    /// Weight decay λ, at least 0. Default: 0.
    pub weight_decay: f64,
}

impl NamedOptions for Sgd {
    fn keyword(&self) -> &'static str {
        "sgd"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("momentum", &mut self.momentum, 0.0..1.0, "momentum coefficient")?;
        options.field("dampening", &mut self.dampening, 0.0..1.0, "dampening of the momentum")?;
        options.field("nesterov", &mut self.nesterov, truth(), "whether the momentum looks ahead")?;
        options.field("weight_decay", &mut self.weight_decay, 0.0.., "weight decay")?;
        let fits = !self.nesterov || (self.momentum > 0.0 && self.dampening == 0.0);
        options.require(fits, "nesterov", &self.nesterov, "false, or a momentum above 0 and no dampening")
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
            let along = |section: &Section, rate| MomentumStep::<T> {
                rate: T::of(rate),
                decay: T::of(self.weight_decay * section.weight_decay),
            };
            if self.momentum == 0.0 {
                return update.step_elements(along);
            }
            let momentum = T::of(self.momentum);
            let take = T::of(if update.step == 0 { 1.0 } else { 1.0 - self.dampening });
            let nesterov = self.nesterov;
            update.step_elements(|section, rate| {
                let along = along(section, rate);
                AlongMomentum { along, momentum, take, nesterov }
            })
        })
    }
}

#[cfg(feature = "cuda")]
pub(super) static MODULE: Module = Module { name: "sgd", code: Code::Packed(hexagram_ptx::SGD) };

/// Step along the gradient on some elements.
#[derive(Debug)]
struct MomentumStep<T> {
    rate: T,
    decay: T,
}

impl<T: FloatExt> Elementwise<T, 1, 1> for MomentumStep<T> {
    #[inline(always)]
    fn run(&self, [gradients]: [&[T]; 1], [parameters]: [&mut [T]; 1]) {
        let pairs = parameters.iter_mut().zip(gradients);
        pairs.for_each(|(x, g)| *x = (*x - self.rate * (*g + self.decay * *x)).canonical());
    }

    #[cfg(feature = "cuda")]
    fn entry(&self) -> KernelEntry {
        let scalars = [self.rate, self.decay].map(T::argument).to_vec();
        KernelEntry { module: &MODULE, name: name_for::<T>(["sgd_plain_f32", "sgd_plain_f64"]), scalars }
    }
}

/// Step along the momentum on some elements.
#[derive(Debug)]
struct AlongMomentum<T> {
    along: MomentumStep<T>,
    momentum: T,
    take: T,
    nesterov: bool,
}

impl<T: FloatExt> Elementwise<T, 1, 2> for AlongMomentum<T> {
    #[inline(always)]
    fn run(&self, [gradients]: [&[T]; 1], [parameters, momentum]: [&mut [T]; 2]) {
        let MomentumStep { rate, decay } = self.along;
        for ((x, g), u) in parameters.iter_mut().zip(gradients).zip(momentum) {
            let d = *g + decay * *x;
            *u = (self.momentum * *u + self.take * d).canonical();
            *x = (*x - rate * if self.nesterov { d + self.momentum * *u } else { *u }).canonical();
        }
    }

    #[cfg(feature = "cuda")]
    fn entry(&self) -> KernelEntry {
        let scalars = [self.along.rate, self.along.decay, self.momentum, self.take].map(T::argument);
        let scalars = scalars.into_iter().chain([Argument::U32(self.nesterov.into())]).collect();
        KernelEntry {
            module: &MODULE,
            name: name_for::<T>(["sgd_momentum_f32", "sgd_momentum_f64"]),
            scalars,
        }
    }
}
