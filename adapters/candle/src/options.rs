//! Options of a replica.

use candle_core::Device;
use hexagram_algorithms::{AnyAlgorithm, EngineOptions, GradientAllReduce};

/// Options of a [`Replica`](crate::Replica): the construction and training of a model. All ranks must use the same.
#[derive(Clone)]
pub struct ReplicaOptions {
    /// Algorithm for the communication of the ranks.
    pub algorithm: AnyAlgorithm,
    /// Buckets, the treatment of unused parameters, and the optimizer of [`Replica::step`](crate::Replica::step).
    pub engine: EngineOptions,
    /// Type of the parameters that the model creates.
    pub dtype: candle_core::DType,
    /// Device of the model. On a GPU, the buckets of the engine are created there, unless [`EngineOptions::queue`]
    /// already belongs to that GPU. Default: the CPU. It may differ between ranks.
    pub device: Device,
    /// True to pass the loss of a model on a GPU to the algorithm, which waits for the forward pass: for algorithms
    /// that use the loss, which no built-in one does. In host memory it is always passed. Default: false.
    pub tell_loss: bool,
    /// Names of further buffers: tensors that the forward pass writes, that get no gradient, and that ranks synchronize
    /// as set by [`EngineOptions::buffers`]. A name is that of a tensor (`encoder.norm.mean`), or its last parts
    /// (`mean`). `running_mean` and `running_var` are always buffers. Default: none.
    pub buffers: Vec<String>,
    /// Names of tensors that each rank keeps for itself, as whole names or last parts: they are not broadcast,
    /// communicated, compared or saved. [`Replica::backward`](crate::Replica::backward) returns the gradients of this
    /// rank for them, for an optimizer of candle; the optimizer of the engine leaves them unchanged. Default: none.
    pub ignored: Vec<String>,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        ReplicaOptions {
            algorithm: GradientAllReduce.into(),
            engine: EngineOptions::default(),
            dtype: candle_core::DType::F32,
            device: Device::Cpu,
            tell_loss: false,
            buffers: Vec::new(),
            ignored: Vec::new(),
        }
    }
}
