//! Checks that an algorithm and the engine options fit each other, before the first step: on every rank, as all have
//! the same.

use crate::engine::{EngineOptions, Overlap};
use crate::optimizer::{self, Optimizer, ParameterGroup};
use crate::plugin::{AnyAlgorithm, Clipping, Optimizers};
use hexagram_logical::{Error, Result};

/// Fails if an algorithm contradicts itself or these options.
pub(crate) fn check_algorithm(algorithm: &AnyAlgorithm, options: &EngineOptions) -> Result<()> {
    algorithm.check()?;
    check_hooks(algorithm)?;
    if options.clip_norm.is_some() {
        check_clipping(algorithm)?;
    }
    check_overlap(algorithm, options)?;
    let Some(optimizer) = &options.optimizer else { return check_is_free(algorithm) };
    if !algorithm.optimizers().fit(&**optimizer) {
        return Err(unfit(algorithm, &optimizer.spelled()));
    }
    check_groups(algorithm, &options.groups)
}

impl Optimizers {
    /// Returns true if an optimizer of the engine is one of them.
    pub fn fit(self, optimizer: &dyn Optimizer) -> bool {
        match self {
            Optimizers::Named { optimizer: named, .. } => word(named) == word(&optimizer.spelled()),
            _ => self.include(optimizer.form()),
        }
    }
}

/// Returns the name at the beginning of a spelling or of `Debug` output.
fn word(spelling: &str) -> &str {
    spelling.split(['(', '{']).next().unwrap_or_default().trim()
}

/// Returns the options with the optimizer that an algorithm names, if they have none.
pub(crate) fn with_named_optimizer(
    algorithm: &AnyAlgorithm,
    options: EngineOptions,
) -> Result<EngineOptions> {
    match (&options.optimizer, algorithm.optimizers().by_default()) {
        (None, Some(named)) => Ok(EngineOptions { optimizer: Some(optimizer::named(named)?), ..options }),
        _ => Ok(options),
    }
}

/// Fails if an algorithm does not fit an optimizer outside the engine.
pub(crate) fn check_is_free(algorithm: &AnyAlgorithm) -> Result<()> {
    if algorithm.optimizers().by_default().is_some() {
        return Err(unfit(algorithm, "the framework's optimizer"));
    }
    if algorithm.reads_slots() {
        let what = format!(
            "{} works on the state of the optimizer, and that of the framework's optimizer is private",
            algorithm.name()
        );
        return Err(Error::usage(what, "set the option `optimizer`, so that the engine makes the steps"));
    }
    Ok(())
}

/// Returns the error for an optimizer that does not fit an algorithm.
pub(crate) fn unfit(algorithm: &AnyAlgorithm, optimizer: &str) -> Error {
    let (reason, remedy) = match algorithm.optimizers() {
        Optimizers::Any => ("it fits any", "report this defect of the engine".to_owned()),
        Optimizers::Sgd(reason) => (reason, "step with plain SGD, which has no momentum".to_owned()),
        Optimizers::BareSgd(reason) => {
            (reason, "step with plain SGD, without momentum and weight decay".to_owned())
        }
        Optimizers::Named { optimizer, reason } => {
            (reason, format!("leave the option `optimizer` out, or set it to {optimizer}"))
        }
    };
    Error::usage(format!("{optimizer} does not fit {}, since {reason}", algorithm.name()), remedy)
}

/// Fails if parameter groups have different learning rates under an algorithm that requires one for all.
pub(crate) fn check_groups(algorithm: &AnyAlgorithm, groups: &[ParameterGroup]) -> Result<()> {
    let Optimizers::BareSgd(reason) = algorithm.optimizers() else { return Ok(()) };
    let Some(group) = groups.iter().find(|group| group.learning_rate != 1.0) else { return Ok(()) };
    let name = algorithm.name();
    let what =
        format!("a separate learning rate for {:?} does not fit {name}, since {reason}", group.members);
    Err(Error::usage(what, "set the learning rates of the parameter groups to 1"))
}

/// Fails if an algorithm has a hook that would never be called.
fn check_hooks(algorithm: &AnyAlgorithm) -> Result<()> {
    let Some(hook) = algorithm.uncalled_hook() else { return Ok(()) };
    let what = format!("{hook} of {} is never called", algorithm.name());
    Err(Error::usage(
        what,
        "request parameters in `needs` of the algorithm; otherwise the engine has none for it",
    ))
}

/// Fails if the communication of a step cannot overlap with the next forward pass, but the options require it.
fn check_overlap(algorithm: &AnyAlgorithm, options: &EngineOptions) -> Result<()> {
    if options.overlap == Overlap::Backward {
        return Ok(());
    }
    let clips = options.clip_norm.is_some() && algorithm.clipping() == Clipping::Outcome;
    let reason = match algorithm.refuses_forward() {
        Some(reason) => reason,
        None if options.optimizer.is_none() => "the framework's optimizer steps on all parameters together",
        None if clips => "gradients are clipped by the norm of all of them, which is known after the last",
        None => return Ok(()),
    };
    let name = algorithm.name();
    let what =
        format!("a step of {name} cannot be communicated during the next forward pass, since {reason}");
    Err(Error::usage(what, "leave the option `overlap` at backward, or change the cause"))
}

/// Fails if an algorithm does not support clipping.
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
            Err(Error::usage(what, "choose another clipping for the algorithm, or none"))
        }
        Clipping::Together | Clipping::Outcome => Ok(()),
    }
}
