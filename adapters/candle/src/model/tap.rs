//! The hook that candle lacks: an identity operation whose backward passes the gradient to hexagram.
//!
//! The backward pass of candle is one loop over the graph. It calls `bwd` of an operation with the complete gradient of
//! its result, after all operations that used the result. So if the model uses `tap(parameter)` instead of `parameter`,
//! `bwd` runs exactly once per pass and as early as possible, before the rest of the loop. It returns `None`: the `Var`
//! gets its gradient later, after synchronization.

use super::model_memory::ModelMemory;
use super::values::{range, with_elements};
use crate::error::Result;
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor, Var};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};
use hexagram_algorithms::Hooks;
use std::sync::{Arc, OnceLock};

/// Engine of the taps, which exists only after all parameters are known.
pub(crate) type EngineSlot = Arc<OnceLock<Hooks>>;

struct Tap {
    parameter: usize,
    engine: EngineSlot,
    home: ModelMemory,
}

/// Returns the tensor that the model uses instead of `var`: its copy, which must be written whenever `var` is.
pub(crate) fn tap(var: &Var, parameter: usize, engine: &EngineSlot, home: &ModelMemory) -> Result<Tensor> {
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
        // Without an engine there is no training: the gradient goes to the `Var`, as without a tap.
        let Some(hooks) = self.engine.get() else { return Ok(Some(gradient.clone())) };
        let ready = self.home.lend_gradient(gradient, |gradient| Ok(hooks.ready(self.parameter, gradient)?));
        let hint = "call replica.backward_step, not that of the optimizer";
        ready.map_err(|error| candle_core::Error::msg(format!("{error} ({hint})")))?;
        Ok(None)
    }
}

fn copied<T: candle_core::WithDType>(elements: &[T]) -> CpuStorage {
    T::to_cpu_storage_owned(elements.to_vec())
}
