//! Checks that an algorithm and the engine's options fit each other, before the first step: on every rank alike, as all have the
//! same of both.

use super::{DataParallel, EngineOptions};
use crate::plugin::{AnyAlgorithm, Clipping, Optimizers, StepForm};
use hexagram_logical::{Error, Result};

/// Fails if an algorithm cannot work as it is written, or with these options.
pub(super) fn check_algorithm(algorithm: &AnyAlgorithm, options: &EngineOptions) -> Result<()> {
    algorithm.check()?;
    check_hooks(algorithm)?;
    if options.clip_norm.is_some() {
        check_clipping(algorithm)?;
    }
    let Some(optimizer) = &options.optimizer else { return Ok(()) };
    check_optimizer(algorithm, optimizer.form(), &format!("{optimizer:?}"))?;
    check_groups(algorithm, options)
}

impl DataParallel {
    /// Fails if an optimizer of the framework, whose steps have this form, does not fit the algorithm. The engine does not
    /// know that optimizer: the training loop, or an adapter, calls it before the first step.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason.
    pub fn check_framework_optimizer(&self, form: StepForm, name: &str) -> Result<()> {
        check_optimizer(self.algorithm(), form, name)
    }
}

/// Fails if an optimizer, whose steps have this form, does not fit an algorithm.
fn check_optimizer(algorithm: &AnyAlgorithm, form: StepForm, optimizer: &str) -> Result<()> {
    let (reason, remedy) = match algorithm.optimizers() {
        fitting if fitting.include(form) => return Ok(()),
        Optimizers::Any => return Ok(()),
        Optimizers::Sgd(reason) => (reason, "step with plain SGD, which has no momentum"),
        Optimizers::BareSgd(reason) => (reason, "step with plain SGD, without momentum and weight decay"),
    };
    let what = format!("{optimizer} does not fit {}, since {reason}", algorithm.name());
    Err(Error::usage(what, remedy))
}

/// Fails if parameters have learning rates of their own under an algorithm that counts on one for all.
fn check_groups(algorithm: &AnyAlgorithm, options: &EngineOptions) -> Result<()> {
    let Optimizers::BareSgd(reason) = algorithm.optimizers() else { return Ok(()) };
    let Some(group) = options.groups.iter().find(|group| group.learning_rate != 1.0) else { return Ok(()) };
    let name = algorithm.name();
    let what = format!("a learning rate for {:?} alone does not fit {name}, since {reason}", group.members);
    Err(Error::usage(what, "leave the parameter groups' learning rates at 1"))
}

/// Fails if an algorithm has a hook that would never be called.
fn check_hooks(algorithm: &AnyAlgorithm) -> Result<()> {
    let Some(hook) = algorithm.uncalled_hook() else { return Ok(()) };
    let what = format!("{hook} of {} is never called", algorithm.name());
    Err(Error::usage(what, "ask for Needs::parameters, without which the engine has none for it"))
}

/// Fails if gradients cannot be clipped under an algorithm.
fn check_clipping(algorithm: &AnyAlgorithm) -> Result<()> {
    let name = algorithm.name();
    match algorithm.clipping() {
        Clipping::Refused(reason) => {
            let what = format!("gradients are not clipped under {name}: {reason}");
            Err(Error::usage(what, "leave out clip_norm, or use another algorithm"))
        }
        Clipping::Together if !algorithm.trigram().synchronous => {
            let what =
                format!("{name} clips the gradients of all ranks together, which do not wait for each other");
            Err(Error::usage(what, "let it declare Clipping::Outcome or Clipping::Refused"))
        }
        Clipping::Together | Clipping::Outcome => Ok(()),
    }
}
