//! Options of a replica.

use candle_core::Device;
use hexagram_algorithms::{AnyAlgorithm, EngineOptions, GradientAllReduce};

/// Options of a [`Replica`](crate::Replica): how a model is built and trained. All ranks must use the same.
#[derive(Clone)]
pub struct ReplicaOptions {
    /// Algorithm by which the ranks communicate.
    pub algorithm: AnyAlgorithm,
    /// Buckets, what to do with unused parameters, and the optimizer of [`Replica::step`](crate::Replica::step).
    pub engine: EngineOptions,
    /// Type of the parameters that the model creates.
    pub dtype: candle_core::DType,
    /// Device that has the model. On a GPU the engine's buckets are made there, unless [`EngineOptions::queue`] is of that
    /// GPU already. Default: the CPU. It may differ between ranks.
    pub device: Device,
    /// True to tell the algorithm the loss of a model on a GPU, which waits for the forward pass: for one that asks for it,
    /// as none of the built-in ones does. In host memory it is always told. Default: false.
    pub tell_loss: bool,
    /// Names of further buffers: tensors that the forward pass writes, that get no gradient, and that ranks keep alike as
    /// [`EngineOptions::buffers`] says. A name is that of a tensor (`encoder.norm.mean`), or its last parts (`mean`).
    /// `running_mean` and `running_var` are always buffers. Default: none.
    pub buffers: Vec<String>,
    /// Names of tensors that are each rank's own, by whole names or last parts: they are neither broadcast nor
    /// communicated, compared nor saved. [`Replica::backward`](crate::Replica::backward) has this rank's gradients of them, for an optimizer of
    /// candle; the engine's optimizer leaves them as they are. Default: none.
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
