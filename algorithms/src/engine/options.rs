//! Options of the engine: all settings that do not belong to the algorithm.

use super::Autotune;
use super::precision::LossScale;
use crate::optimizer::{LearningRate, Optimizer, ParameterGroup};
use crate::plugin::check_option;
use hexagram_logical::{Error, Queue, Result};
use std::sync::Arc;

/// Maximum number of buckets at the same time: the number of lanes.
const MOST_STREAMS: usize = u16::MAX as usize;

/// Treatment of a parameter without a gradient in a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unused {
    /// The pass fails with the name of the parameter, on every rank.
    #[default]
    Error,
    /// The gradient of this rank counts as zero; the gradients of the other ranks still count. A step leaves a
    /// parameter unchanged on all ranks if no rank has used it. For that, each step of a synchronous algorithm sends a
    /// message of one byte per parameter.
    Zero,
}

/// Order in which buckets are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Order in which the first backward pass of rank 0 completes the gradients. The communication of that pass begins
    /// only after it has ended.
    #[default]
    Observed,
    /// Reverse of the order in which the parameters are listed, from the first pass on.
    Listed,
}

/// Treatment of the buffers of a model: tensors of a replica that are not parameters, such as the running statistics of
/// a normalization; see [`DataParallel::synchronize_buffers`](super::DataParallel::synchronize_buffers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffers {
    /// All ranks continue with the buffers of rank 0.
    #[default]
    Broadcast,
    /// All ranks continue with the mean; for integers, with the buffers of rank 0.
    Average,
    /// Every rank keeps its own buffers.
    Off,
}

/// Computation with which the communication of a step may overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// The backward pass. When [`DataParallel::step`](super::DataParallel::step) returns, all parameters are final.
    #[default]
    Backward,
    /// The backward pass and the next forward pass. [`DataParallel::step`](super::DataParallel::step) returns while
    /// buckets are still in progress, in the order in which the forward pass needs them. The training loop calls
    /// [`DataParallel::wait_for`](super::DataParallel::wait_for) before a module uses its parameters. It requires an
    /// optimizer of the engine, and an algorithm that [allows](crate::AnyAlgorithm::refuses_forward) it.
    Forward,
}

/// Options of the engine. All ranks must use the same, except for the queue.
///
/// ```
/// use hexagram::algorithms::{AdamW, EngineOptions};
/// use std::sync::Arc;
///
/// let options = EngineOptions {
///     optimizer: Some(Arc::new(AdamW::default())),
///     clip_norm: Some(1.0),
///     hierarchical: true,
///     ..EngineOptions::default()
/// };
/// assert_eq!(options.bucket_bytes, 10 << 20);
/// ```
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Minimum size of a bucket, in bytes, at least 1: a bucket ends with the parameter that reaches it. Default: 10
    /// MiB.
    pub bucket_bytes: usize,
    /// Size of the first bucket, in bytes, at least 1: small, so that communication begins early. Default: 1 MiB.
    pub first_bucket_bytes: usize,
    /// Order in which buckets are filled. Default: [`Order::Observed`].
    pub order: Order,
    /// Treatment of parameters without a gradient. Default: [`Unused::Error`].
    pub unused: Unused,
    /// Treatment of buffers before a training forward pass. Default: [`Buffers::Broadcast`].
    pub buffers: Buffers,
    /// Optimizer of the engine. `None`, the default, leaves the step to the framework, or selects the optimizer that
    /// the algorithm [names](crate::Optimizers::Named). An optimizer that does not fit the algorithm
    /// ([`About::optimizers`](crate::About#structfield.optimizers)) is refused; for one of the framework, call
    /// [`DataParallel::check_framework_optimizer`](super::DataParallel::check_framework_optimizer).
    pub optimizer: Option<Arc<dyn Optimizer>>,
    /// Learning rate γ from the first step on, a number or a schedule; `None`, the default, if
    /// [`DataParallel::set_learning_rate`](super::DataParallel::set_learning_rate) sets it.
    pub learning_rate: Option<LearningRate>,
    /// Parameters with their own learning rate or weight decay; if several groups contain a parameter, the first one
    /// counts. Default: none.
    pub groups: Vec<ParameterGroup>,
    /// True to communicate within each host first, and then between hosts, where the algorithm averages over all ranks.
    /// Default: false.
    pub hierarchical: bool,
    /// Computation with which communication may overlap. Default: [`Overlap::Backward`].
    pub overlap: Overlap,
    /// Maximum number of buckets that are communicated at the same time, 1 to 65535; always 1 with NCCL. Default: no
    /// limit, [`usize::MAX`].
    pub streams: usize,
    /// Maximum norm c of all gradients together; larger ones are scaled down to it. The algorithm declares which
    /// gradients are clipped: [`Clipping`](crate::Clipping). Default: none.
    pub clip_norm: Option<f64>,
    /// Scaling of the loss, for gradients in 16 bits. Buckets then wait for the end of the backward pass, without
    /// overlap, as no rank may step if a gradient of any rank has overflowed. Default: none.
    pub loss_scale: Option<LossScale>,
    /// True to treat gradients that are not finite as an overflow, where a low-precision algorithm would refuse them:
    /// for a framework that scales the loss itself. Then all ranks have NaN in that bucket, and
    /// [`LossScaling::overflowed`](super::LossScaling::overflowed) returns true. For that, each bucket of a synchronous
    /// algorithm sends a message of 4 bytes. Default: false; such a gradient is an error that names the element.
    pub skip_overflows: bool,
    /// True if ranks may run out of data at different times, and then [`join`](super::Uneven::join). Each step of a
    /// synchronous algorithm then begins with a message of 16 bytes from every rank to all others, for which all wait.
    /// Default: false.
    pub uneven: bool,
    /// Queue of the device of the model: buckets are created there, on this queue and on others of the device. Default:
    /// a host queue. It may differ between ranks.
    pub queue: Queue,
    /// Seed of the random numbers that algorithms draw from [`Context`](crate::Context). Default: 0.
    pub seed: u64,
    /// Search for bucket size, streams and hierarchy during the training; the options above are tried first. Default:
    /// none.
    pub autotune: Option<Autotune>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            bucket_bytes: 10 << 20,
            first_bucket_bytes: 1 << 20,
            order: Order::Observed,
            unused: Unused::Error,
            buffers: Buffers::Broadcast,
            optimizer: None,
            learning_rate: None,
            groups: Vec::new(),
            hierarchical: false,
            overlap: Overlap::Backward,
            streams: usize::MAX,
            clip_norm: None,
            loss_scale: None,
            skip_overflows: false,
            uneven: false,
            queue: Queue::host(),
            seed: 0,
            autotune: None,
        }
    }
}

impl EngineOptions {
    /// Refuses invalid values.
    pub(super) fn check(&self) -> Result<()> {
        self.optimizer.as_ref().map_or(Ok(()), |optimizer| optimizer.check())?;
        self.learning_rate.map_or(Ok(()), |rate| rate.check())?;
        self.groups.iter().try_for_each(ParameterGroup::check)?;
        if self.optimizer.is_none() && !self.groups.is_empty() {
            let remedy = "set the option `optimizer`, or pass the groups to the optimizer of the framework";
            return Err(Error::usage("parameter groups need an engine optimizer, and none is set", remedy));
        }
        check_option(self.bucket_bytes > 0, "bucket_bytes", &self.bucket_bytes, "1 or more")?;
        check_option(
            self.first_bucket_bytes > 0,
            "first_bucket_bytes",
            &self.first_bucket_bytes,
            "1 or more",
        )?;
        let fits = (1..=MOST_STREAMS).contains(&self.streams) || self.streams == usize::MAX;
        check_option(fits, "streams", &self.streams, "1 to 65535, or leave it out for no limit")?;
        self.clip_norm.map_or(Ok(()), check_limit)?;
        self.autotune.as_ref().map_or(Ok(()), Autotune::check)?;
        self.loss_scale.map_or(Ok(()), |scale| scale.check())
    }
}

fn check_limit(limit: f64) -> Result<()> {
    if limit.is_finite() && limit > 0.0 {
        return Ok(());
    }
    Err(Error::usage(format!("gradients cannot be clipped to a norm of {limit}"), "use a positive clip_norm"))
}
