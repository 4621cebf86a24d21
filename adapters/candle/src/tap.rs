//! The hook that candle lacks: an identity operation whose backward hands the gradient to hexagram.
//!
//! candle's backward is one loop over the graph. It calls an operation's `bwd` with the complete gradient of the
//! operation's result, after everything that used the result. So if the model uses `tap(parameter)` wherever it would
//! use `parameter`, `bwd` runs exactly once per pass and at the earliest moment, while the rest of the loop is still to
//! come. It returns `None`: the `Var` gets its gradient later, once it is synchronized.

use crate::error::Result;
use crate::home::Home;
use crate::values::{range, with_elements};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor, Var};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};
use hexagram_algorithms::Hooks;
use std::sync::{Arc, OnceLock};

/// Engine of the taps, which exists only after all parameters are known.
pub(crate) type Engine = Arc<OnceLock<Hooks>>;

struct Tap {
    parameter: usize,
    engine: Engine,
    home: Home,
}

/// Returns what the model uses in place of `var`: its copy, which must be written wherever `var` is.
pub(crate) fn tap(var: &Var, parameter: usize, engine: &Engine, home: &Home) -> Result<Tensor> {
    let tap = Tap { parameter, engine: Arc::clone(engine), home: home.clone() };
    Ok(var.as_tensor().apply_op1(tap)?)
}

impl CustomOp1 for Tap {
    fn name(&self) -> &'static str {
        "hexagram-tap"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let copy: Result<CpuStorage> =
            with_elements!(storage, range(layout), elements => Ok(copied(elements)));
        Ok((copy.map_err(candle_core::Error::wrap)?, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        if layout.start_offset() != 0 || !layout.is_contiguous() {
            candle_core::bail!("a parameter is a part of another tensor");
        }
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        // Before the engine exists nobody trains: the gradient is the Var's, as without a tap.
        let Some(hooks) = self.engine.get() else { return Ok(Some(gradient.clone())) };
        let ready = self.home.lend_gradient(gradient, |gradient| Ok(hooks.ready(self.parameter, gradient)?));
        let hint = "is this backward pass replica.backward_step's, and not the optimizer's own?";
        ready.map_err(|error| candle_core::Error::msg(format!("{error} ({hint})")))?;
        Ok(None)
    }
}

fn copied<T: candle_core::WithDType>(elements: &[T]) -> CpuStorage {
    T::to_cpu_storage_owned(elements.to_vec())
}
