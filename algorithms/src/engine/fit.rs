//! Checks that an algorithm and the engine's options fit each other, before the first step: on every rank alike, as all have the
//! same of both.

use super::EngineOptions;
use crate::plugin::{AnyAlgorithm, Clipping};
use hexagram_logical::{Error, Result};

/// Fails if an algorithm cannot work as it is written, or with these options.
pub(super) fn check_algorithm(algorithm: &AnyAlgorithm, options: &EngineOptions) -> Result<()> {
    check_hooks(algorithm)?;
    if options.clip_norm.is_some() { check_clipping(algorithm) } else { Ok(()) }
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
