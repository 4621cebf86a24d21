//! LARS: momentum SGD with a step in each tensor that is proportional to the length of the tensor.
//!
//! ```text
//! q ← η ‖x‖ / (‖g‖ + λ ‖x‖ + ε)       norms of a tensor, λ: weight decay; q = 1 if ‖x‖ or ‖g‖ is 0,
//!                                      and for vectors and scalars
//! u ← μ u + γ q (g + λ x)             μ: momentum
//! x ← x − u                           Nesterov: x ← x − (μ u + γ q (g + λ x))
//! ```
//!
//! Source: You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017 (arXiv 1708.03888). γ is
//! part of u, so a change of γ affects only later additions to u. Common implementations do not scale vectors (biases
//! and norms). State: u, one element per parameter.

use super::{Optimizer, Update, with_float};
#[cfg(feature = "cuda")]
use crate::elementwise::{name_for, runs};
use crate::float_ext::{FloatExt, norm};
use hexagram_logical::Result;
use hexagram_logical::device::kernels::widest;
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Argument, Code, Launch, Module, Program};
#[cfg(feature = "cuda")]
use hexagram_logical::device::sums::Sums;
use hexagram_logical::device::{Kernel, Operands};
use hexagram_logical::options_text::{NamedOptions, Options, above, truth};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "cuda")]
pub(super) static MODULE: Module = Module { name: "lars", code: Code::Packed(hexagram_ptx::LARS) };

/// Layer-wise adaptive rate scaling, for large batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lars {
    /// Momentum coefficient μ, in [0, 1). Default: 0.9.
    pub momentum: f64,
    /// True for Nesterov momentum, which looks ahead. Default: false.
    pub nesterov: bool,
    /// Weight decay λ, at least 0. Default: 0.
    pub weight_decay: f64,
    /// Trust coefficient η, above 0: the length of a step at γ = 1, as a share of the length of the tensor. Default:
    /// 0.001.
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

impl NamedOptions for Lars {
    fn keyword(&self) -> &'static str {
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
            "length of a step, relative to that of the tensor",
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
            let tensors = update.by_tensor(|section, tensor, rate| InProportion {
                elements: tensor.elements.clone(),
                rate,
                decay: self.weight_decay * section.weight_decay,
                scaled: self.scale_vectors || tensor.shape.len() > 1,
            });
            update.run::<T, 2>(LarsStep { lars: *self, tensors, elements: PhantomData::<T> })
        })
    }
}

/// The LARS step on a bucket.
#[derive(Debug)]
struct LarsStep<T> {
    lars: Lars,
    tensors: Vec<InProportion>,
    elements: PhantomData<T>,
}

/// Step of one tensor.
#[derive(Debug)]
struct InProportion {
    elements: Range<usize>,
    rate: f64,
    decay: f64,
    /// True if the rate is multiplied by q.
    scaled: bool,
}

impl<T: FloatExt> Kernel for LarsStep<T> {
    fn run(&self, operands: Operands<'_>) -> Result<()> {
        let ([gradients], [parameters, slot]) = operands.all::<T, 1, 2>()?;
        let momentum = T::of(self.lars.momentum);
        widest(|| {
            for tensor in &self.tensors {
                let at = || tensor.elements.clone();
                let x = &mut parameters[at()];
                let g = &gradients[at()];
                let quotient = if tensor.scaled { self.lars.quotient(x, g, tensor.decay) } else { 1.0 };
                let rate = T::of(tensor.rate * quotient);
                let decay = T::of(tensor.decay);
                for ((x, g), u) in x.iter_mut().zip(g).zip(&mut slot[at()]) {
                    let d = rate * (*g + decay * *x);
                    *u = (momentum * *u + d).canonical();
                    *x = (*x - if self.lars.nesterov { momentum * *u + d } else { *u }).canonical();
                }
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn program(&self) -> Option<Program> {
        let Lars { momentum, nesterov, trust, epsilon, .. } = self.lars;
        let mut launches = Vec::new();
        let mut scratch = 0;
        for tensor in self.tensors.iter().filter(|tensor| !tensor.elements.is_empty()) {
            // The sums of both norms come first in the scratch memory.
            let norms = Argument::Scratch(0);
            let len = tensor.elements.len();
            let runs = |to| runs::<T>(0..to, &tensor.elements).chain([Argument::U64(len as u64)]);
            let sums = Sums::new("lars_sums", 2, len, norms, 16);
            scratch = scratch.max(sums.scratch);
            if tensor.scaled {
                let entry = name_for::<T>(["lars_norms_f32", "lars_norms_f64"]);
                launches.push(Launch::summing(entry, len, runs(2).chain([sums.blocks]).collect()));
                launches.extend(sums.launches);
            }
            let scalars = [momentum, tensor.decay].map(|scalar| T::of(scalar).argument());
            let quotient = [tensor.rate, tensor.decay, trust, epsilon].map(Argument::F64);
            let flags = [nesterov, tensor.scaled].map(|flag| Argument::U32(flag.into()));
            let arguments = runs(3).chain(scalars).chain(quotient).chain(flags).chain([norms]);
            let entry = name_for::<T>(["lars_step_f32", "lars_step_f64"]);
            launches.push(Launch::over(entry, len, arguments.collect()));
        }
        Some(Program::in_turn(&MODULE, launches, scratch))
    }
}

impl Lars {
    /// Returns the factor q of the learning rate of a tensor.
    fn quotient<T: FloatExt>(&self, parameters: &[T], gradients: &[T], decay: f64) -> f64 {
        let parameters = norm(parameters);
        let gradients = norm(gradients);
        if parameters > 0.0 && gradients > 0.0 {
            self.trust * parameters / (gradients + decay * parameters + self.epsilon)
        } else {
            1.0
        }
    }
}
