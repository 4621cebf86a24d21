//! Optimizers of the engine, on flat memory: one pass over each bucket, and a state that is saved, broadcast and moved
//! between buckets with the parameters. Implement [`Optimizer`] for your own.
//!
//! | optimizer | step of a parameter x with gradient g | state |
//! |---|---|---|
//! | [`Sgd`] | along g, optionally with momentum | 0 or 1 element per parameter |
//! | [`Adam`], [`AdamW`] | along m / √v, of about γ in every element | 2 |
//! | [`Lion`] | γ in every element, along the sign of a momentum | 1 |
//! | [`Lamb`] | that of Adam, scaled to the length of the tensor | 2 |
//! | [`Lars`] | along g, with a length proportional to that of the tensor | 1 |
//! | [`Muon`] | matrices: along the nearest orthogonal matrix of the momentum; others: as AdamW | 1; others: 2 |
//!
//! A step runs on the device of the parameters. Your own may work on host slices, as in the example of [`Optimizer`]:
//! on another device they are copied to the host and back.
//!
//! A [`ParameterGroup`] gives parameters their own learning rate or weight decay; a [`LearningRate`] changes the
//! learning rate during training.

mod adam;
mod catalogue;
mod group;
mod lamb;
mod lars;
mod learning_rate;
mod lion;
pub(crate) mod moments;
mod muon;
mod sgd;

pub use adam::{Adam, AdamW, AdaptiveMoments};
pub use catalogue::{catalogue, named};
pub use group::{Members, ParameterGroup, Section};
pub use lamb::Lamb;
pub use lars::Lars;
pub use learning_rate::{LearningRate, RateSchedule};
pub use lion::Lion;
pub use moments::{Frozen, Moments};
pub use muon::{Muon, MuonScale};
pub use sgd::Sgd;

pub(crate) use crate::plugin::with_float;
pub(crate) use group::{check_names, sections};

use crate::elementwise::{self, Elementwise};
use crate::float_ext::FloatExt;
use crate::plugin::{StepForm, Tensor};
use hexagram_logical::device::Kernel;
use hexagram_logical::{Buffer, Error, Result};
use std::fmt;
use std::sync::Arc;

/// GPU modules of all arithmetic on parameters and moments.
#[cfg(feature = "cuda")]
pub(crate) static MODULES: [&hexagram_logical::device::program::Module; 8] = [
    &sgd::MODULE,
    &adam::MODULES[0],
    &adam::MODULES[1],
    &lion::MODULE,
    &lamb::MODULE,
    &lars::MODULE,
    &muon::cuda::MODULE,
    &moments::moment::MODULE,
];

/// Rule that updates parameters from gradients.
///
/// Fields must not differ between ranks: the `Debug` output is compared.
///
/// ```
/// use hexagram::logical::Result;
/// use hexagram::algorithms::{Optimizer, optimizer::Update};
///
/// /// Gradient descent that steps by the sign: x ← x − γ sgn(g).
/// #[derive(Debug)]
/// struct SignSgd;
/// impl Optimizer for SignSgd {
///     fn slots(&self) -> &'static [&'static str] {
///         &[]
///     }
///     fn step(&self, update: Update<'_>) -> Result<()> {
///         let gradients = update.gradients.host::<f32>()?;
///         let mut parameters = update.parameters.host_mut::<f32>()?;
///         for section in update.sections {
///             let rate = (update.learning_rate * section.learning_rate) as f32;
///             for at in section.elements.clone() {
///                 parameters[at] -= rate * gradients[at].signum();
///             }
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Optimizer: fmt::Debug + Send + Sync + 'static {
    /// Returns the names of the state of every tensor, in buffers that are zero before the first step.
    fn slots(&self) -> &'static [&'static str];

    /// Returns the number of elements of a slot for a tensor: by default the length of the tensor. The parts of the
    /// tensors of a bucket follow each other in the buffer of the slot.
    fn slot_len(&self, slot: &str, tensor: &Tensor) -> usize {
        let _ = slot;
        tensor.elements.len()
    }

    /// Returns the form of a step, for algorithms that do not fit every optimizer.
    fn form(&self) -> StepForm {
        StepForm::default()
    }

    /// Returns the weight decay λ to which the [factor of a group](ParameterGroup) applies; `None` without such an
    /// option, or with several.
    fn weight_decay(&self) -> Option<f64> {
        None
    }

    /// Returns the same optimizer with another weight decay, if it has exactly one such option.
    fn with_weight_decay(&self, weight_decay: f64) -> Option<Arc<dyn Optimizer>> {
        let _ = weight_decay;
        None
    }

    /// Refuses invalid options.
    ///
    /// # Errors
    /// [`Error::Usage`].
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the spelling, if [`catalogue`] contains the optimizer, without options that have their defaults.
    fn spelled(&self) -> String {
        format!("{self:?}")
    }

    /// Makes one step on one bucket; `slots` are in the order of [`Optimizer::slots`].
    ///
    /// # Errors
    /// [`Error::Usage`] for element types that it does not support.
    fn step(&self, update: Update<'_>) -> Result<()>;
}

/// Arguments of one optimizer step on one bucket.
pub struct Update<'a> {
    /// Number of steps before this one.
    pub step: u64,
    /// Learning rate γ.
    pub learning_rate: f64,
    /// Tensors of the bucket, which cover it in the order of their elements.
    pub tensors: &'a [Tensor],
    /// Sections of the bucket, which also cover it, each with one parameter group.
    pub sections: &'a [Section],
    /// Gradients, as left by the algorithm.
    pub gradients: &'a Buffer,
    /// Parameters to update.
    pub parameters: &'a mut Buffer,
    /// Buffers of the optimizer state, in the order of [`Optimizer::slots`].
    pub slots: &'a mut [Buffer],
}

impl Update<'_> {
    /// Steps every element separately, with the step that `rule` returns for its section and learning rate. Writes `W`
    /// runs: the parameters and all slots.
    fn step_elements<T: FloatExt, E: Elementwise<T, 1, W>, const W: usize>(
        self,
        rule: impl Fn(&Section, f64) -> E,
    ) -> Result<()> {
        let part = |section: &Section| {
            let rate = self.learning_rate * section.learning_rate;
            (section.elements.clone(), rule(section, rate))
        };
        let parts = self.sections.iter().map(part).collect();
        elementwise::each(parts, [self.gradients], self.written()?)
    }

    /// Returns the result of `rule` for each tensor, its section and its learning rate.
    fn by_tensor<S>(&self, rule: impl Fn(&Section, &Tensor, f64) -> S) -> Vec<S> {
        let of_section = |section: &Section| {
            let rate = self.learning_rate * section.learning_rate;
            let tensors = &self.tensors[section.tensors.clone()];
            tensors.iter().map(|tensor| rule(section, tensor, rate)).collect::<Vec<_>>()
        };
        self.sections.iter().flat_map(of_section).collect()
    }

    /// Runs a kernel that reads the gradients, and writes the parameters and all slots, tensor by tensor.
    fn run<T: FloatExt, const W: usize>(self, kernel: impl Kernel) -> Result<()> {
        let written: [&Buffer; W] = self.written()?;
        let len = elementwise::alike::<T>(&[self.gradients], &written)?;
        elementwise::within(len, self.tensors.iter().map(|tensor| &tensor.elements))?;
        elementwise::run(Arc::new(kernel), &[self.gradients], &written)
    }

    /// Returns the parameters and all slots of an optimizer, as an array.
    fn written<const W: usize>(&self) -> Result<[&Buffer; W]> {
        let written: Vec<&Buffer> = std::iter::once(&*self.parameters).chain(&*self.slots).collect();
        written.try_into().map_err(|_| strange_slots(W - 1, self.slots.len()))
    }
}

fn strange_slots(named: usize, given: usize) -> Error {
    let what = format!("an optimizer of {named} slots was given {given}");
    Error::usage(what, "pass the slots that it names")
}
