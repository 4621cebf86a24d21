//! Parameters from which the model is built: a `VarMap` that returns tapped parameters.

use super::model_memory::ModelMemory;
use super::roles::{Role, TensorRoles};
use super::tap::{EngineSlot, tap};
use crate::error::Result;
use candle_core::{DType, Device, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarMap};
use hexagram_algorithms::logical::ReadView;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One tensor that the model requested.
#[derive(Clone)]
pub(crate) struct ModelTensor {
    pub(crate) name: String,
    pub(crate) var: Var,
    /// Tensor that the model uses instead; none for buffers, which the forward pass writes directly.
    pub(crate) tap: Option<Tensor>,
}

impl ModelTensor {
    /// Writes new values to the `Var` and the tap, in one pass. As [`ModelMemory::overwrite`].
    pub(crate) fn publish(&self, home: &ModelMemory, values: &ReadView) -> Result<()> {
        let tensors: Vec<&Tensor> = std::iter::once(self.var.as_tensor()).chain(&self.tap).collect();
        home.overwrite(&tensors, values)
    }
}

/// Tensors in the order in which the model requested them, which is similar to the order of their use.
#[derive(Clone, Default)]
pub(crate) struct RequestedTensors {
    /// Tensors of the replica.
    pub(crate) entries: Vec<ModelTensor>,
    /// Tensors that each rank keeps for itself.
    pub(crate) ignored: Vec<(String, Var)>,
}

impl RequestedTensors {
    /// Returns the tensor that the model has already received for a name.
    fn known(&self, name: &str, tensor: &Tensor) -> Option<Tensor> {
        let entry = self.entries.iter().find(|entry| entry.name == name);
        // Tied weights share one tap, so that its gradient is the sum of all uses.
        let known = entry.map(|entry| entry.tap.clone());
        let known = known.or_else(|| self.ignored.iter().any(|(other, _)| other == name).then_some(None));
        known.map(|tap| tap.unwrap_or_else(|| tensor.clone()))
    }
}

/// The tensors, for builder and replica.
#[derive(Clone, Default)]
pub(crate) struct Entries(Arc<Mutex<RequestedTensors>>);

impl Entries {
    pub(crate) fn lock(&self) -> MutexGuard<'_, RequestedTensors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The backend behind the model's `VarBuilder`.
pub(crate) struct Tapped {
    pub(crate) varmap: VarMap,
    pub(crate) entries: Entries,
    pub(crate) roles: TensorRoles,
    pub(crate) engine: EngineSlot,
    pub(crate) home: ModelMemory,
}

impl SimpleBackend for Tapped {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> candle_core::Result<Tensor> {
        let tensor = self.varmap.get(s, name, h, dtype, dev)?;
        let mut asked = self.entries.lock();
        if let Some(known) = asked.known(name, &tensor) {
            return Ok(known);
        }
        let vars = self.varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
        let var = vars.get(name).cloned();
        drop(vars);
        let var = var.ok_or_else(|| candle_core::Error::msg(format!("`{name}` is not in the VarMap")))?;
        let name = name.to_owned();
        match self.roles.of(&name) {
            Role::Ignored => asked.ignored.push((name, var)),
            Role::Buffer => asked.entries.push(ModelTensor { name, var, tap: None }),
            Role::Parameter => {
                let parameter = asked.entries.iter().filter(|entry| entry.tap.is_some()).count();
                let tap = tap(&var, parameter, &self.engine, &self.home).map_err(candle_core::Error::wrap)?;
                asked.entries.push(ModelTensor { name, var, tap: Some(tap.clone()) });
                return Ok(tap);
            }
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        Err(candle_core::Error::msg(format!(
            "`{name}`: a VarMap needs a shape and an initialization, use `get`"
        )))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.varmap.data().lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }
}
