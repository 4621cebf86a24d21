//! The tensors of a candle model: their roles, their memory, and the parameters from which the model is built.
//!
//! | file | content |
//! |---|---|
//! | `parameters` | a `VarMap` that returns tapped parameters |
//! | `tap` | the hook of a parameter in the backward pass of candle |
//! | `roles` | parameter, buffer, or local to each rank |
//! | `model_memory`, `gpu` | transfer of elements to the engine and back, in host memory or on a GPU |
//! | `values` | elements of a tensor, by element type |

#[cfg(feature = "cuda")]
mod gpu;
mod model_memory;
mod parameters;
mod roles;
mod tap;
mod values;

pub(super) use model_memory::ModelMemory;
pub(super) use parameters::{Entries, ModelTensor, RequestedTensors, Tapped};
pub(super) use roles::TensorRoles;
pub(super) use tap::EngineSlot;
pub(super) use values::{dtype, range};
