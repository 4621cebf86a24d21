//! The hook that candle lacks: an identity operation whose backward hands the gradient to hexagram.
//!
//! candle's backward is one loop over the graph. It calls an operation's `bwd` with the complete gradient of the
//! operation's result, after everything that used the result. So if the model uses `tap(parameter)` wherever it would use
//! `parameter`, `bwd` runs exactly once per pass and at the earliest moment, while the rest of the loop is still to come.
//! It returns `None`: the `Var` gets its gradient later, once it is synchronized.

use crate::error::{Error, Result};
use crate::values::{not_on_cpu, with_elements};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Storage, Tensor, Var};
use hexagram_algorithms::Hooks;
use std::sync::{Arc, OnceLock};

/// Where taps find the engine, which exists only after all parameters are known.
pub(crate) type Engine = Arc<OnceLock<Hooks>>;

struct Tap {
    parameter: usize,
    engine: Engine,
}

/// What the model uses in place of `var`: its copy, of which [`refresh`] is to be called after each change of `var`.
pub(crate) fn tap(var: &Var, parameter: usize, engine: &Engine) -> Result<Tensor> {
    Ok(var.as_tensor().apply_op1(Tap { parameter, engine: Arc::clone(engine) })?)
}

/// Copies the parameter into its tap.
pub(crate) fn refresh(tap: &Tensor, var: &Var) -> Result<()> {
    // A flattened contiguous tensor shares the storage, and also scalars then have a dimension.
    tap.detach().flatten_all()?.slice_set(&var.as_detached_tensor().flatten_all()?, 0, 0)?;
    Ok(())
}

impl CustomOp1 for Tap {
    fn name(&self) -> &'static str {
        "hexagram-tap"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        let copy: Result<CpuStorage> = with_elements!(storage, range, elements => Ok(copied(elements)));
        Ok((copy.map_err(candle_core::Error::wrap)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        // Before the engine exists nobody trains: the gradient is the Var's, as without a tap.
        let Some(hooks) = self.engine.get() else { return Ok(Some(gradient.clone())) };
        let gradient = gradient.contiguous()?;
        let (storage, layout) = gradient.storage_and_layout();
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        let ready: Result<()> = match &*storage {
            Storage::Cpu(storage) => with_elements!(storage, range, elements => {
                hooks.ready_slice(self.parameter, elements).map_err(Error::from)
            }),
            _ => Err(not_on_cpu()),
        };
        let hint = "is this backward pass replica.backward_step's, and not the optimizer's own?";
        ready.map_err(|error| candle_core::Error::msg(format!("{error} ({hint})")))?;
        Ok(None)
    }
}

fn copied<T: candle_core::WithDType>(elements: &[T]) -> CpuStorage {
    T::to_cpu_storage_owned(elements.to_vec())
}
