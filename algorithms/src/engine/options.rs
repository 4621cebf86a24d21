//! Options of the engine: everything that is not the algorithm's to say.

use super::Autotune;
use super::loss_scale::LossScale;
use crate::optimizer::{LearningRate, Optimizer, ParameterGroup};
use crate::plugin::check_option;
use hexagram_logical::{Error, Queue, Result};
use std::sync::Arc;

/// Largest number of buckets at once that can be asked for: there are no more lanes.
const MOST_STREAMS: usize = u16::MAX as usize;

/// Treatment of a parameter that got no gradient in a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unused {
    /// The pass is refused, by the parameter's name, on every rank.
    #[default]
    Error,
    /// This rank's gradient counts as zero. The other ranks' gradients still count; a step leaves a parameter as it is,
    /// on all ranks, that none of them has used, for which each step of a synchronous algorithm has a message of a byte
    /// for each parameter.
    Zero,
}

/// Order in which buckets are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Order in which the first backward pass of rank 0 completes the gradients. Nothing of that one pass is
    /// communicated before it is over.
    #[default]
    Observed,
    /// Reverse of the order in which the parameters are listed, from the first pass on.
    Listed,
}

/// Treatment of a model's buffers, which are no parameters but belong to a replica, such as the running statistics of a
/// normalization; see [`DataParallel::synchronize_buffers`](super::DataParallel::synchronize_buffers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffers {
    /// All ranks go on with rank 0's.
    #[default]
    Broadcast,
    /// All ranks go on with the mean; with rank 0's where elements are integers.
    Average,
    /// Every rank keeps its own.
    Off,
}

/// Computation that a step's communication may run beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// The backward pass. When [`DataParallel::step`](super::DataParallel::step) returns, all parameters are final.
    #[default]
    Backward,
    /// The backward pass and the next forward pass. [`DataParallel::step`](super::DataParallel::step) returns while
    /// buckets are on their way, those that the forward pass needs first before the others, and the training loop calls
    /// [`DataParallel::wait_for`](super::DataParallel::wait_for) before a module uses its parameters. It needs the
    /// engine's optimizer, and an algorithm that [allows](crate::AnyAlgorithm::refuses_forward) it.
    Forward,
}

/// Options of the engine. All ranks must use the same, but for the queue.
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
    /// Size of a bucket, in bytes, 1 or more: it ends with the parameter that makes it so large, or larger. Default: 10 MiB.
    pub bucket_bytes: usize,
    /// Size of the first bucket, in bytes, 1 or more: small, so that communication begins early. Default: 1 MiB.
    pub first_bucket_bytes: usize,
    /// Order in which buckets are filled. Default: [`Order::Observed`].
    pub order: Order,
    /// Treatment of parameters without gradient. Default: [`Unused::Error`].
    pub unused: Unused,
    /// Treatment of buffers before a training forward pass. Default: [`Buffers::Broadcast`].
    pub buffers: Buffers,
    /// Optimizer that the engine steps with; `None`, the default, leaves that to the framework, or is the one that the
    /// algorithm [names](crate::Optimizers::Named). One that does not fit the algorithm
    /// ([`About::optimizers`](crate::About#structfield.optimizers)) is refused; of the framework's the engine does not
    /// know, unless [`DataParallel::check_framework_optimizer`](super::DataParallel::check_framework_optimizer) says.
    pub optimizer: Option<Arc<dyn Optimizer>>,
    /// Learning rate γ from the first step on, a number or a schedule; `None`, the default, leaves it to
    /// [`DataParallel::set_learning_rate`](super::DataParallel::set_learning_rate).
    pub learning_rate: Option<LearningRate>,
    /// Parameters that the optimizer steps with a learning rate or weight decay of their own; the first group that has
    /// a parameter counts. Default: none.
    pub groups: Vec<ParameterGroup>,
    /// True to communicate within each host first, and then between hosts, where the algorithm means all ranks.
    /// Default: false.
    pub hierarchical: bool,
    /// Computation that communication may run beside. Default: [`Overlap::Backward`].
    pub overlap: Overlap,
    /// Number of buckets that may be communicated at once, 1 to 65535. Where NCCL carries them, it is one. Default: no
    /// limit, [`usize::MAX`].
    pub streams: usize,
    /// Largest norm c of all gradients together; larger ones are scaled down to it. Which gradients these are, the
    /// algorithm declares: [`Clipping`](crate::Clipping). Default: none.
    pub clip_norm: Option<f64>,
    /// Scaling of the loss, for gradients in 16 bits. Buckets then wait for the end of the backward pass, as no rank
    /// may step if a gradient of any rank has overflowed: nothing overlaps. Default: none.
    pub loss_scale: Option<LossScale>,
    /// True to take gradients that are not finite for an overflow, where an algorithm of low precision refuses such: for a
    /// framework that scales the loss by itself. Then all ranks have NaN in that bucket, and
    /// [`LossScaling::overflowed`](super::LossScaling::overflowed) says that there is nothing to step with; for which each
    /// bucket of a synchronous algorithm has a message of 4 bytes. Default: false, so that it is an error that names the
    /// element.
    pub skip_overflows: bool,
    /// True if ranks may run out of data at different times, and then [`join`](super::Uneven::join). Each step of a
    /// synchronous algorithm then begins with a message of 16 bytes from every rank to all others, which waits for all.
    /// Default: false.
    pub uneven: bool,
    /// Queue of the device that has the model: buckets are made there, on this queue and on others of the device. Default:
    /// the host's. It may differ between ranks.
    pub queue: Queue,
    /// Seed of the random numbers that algorithms draw by [`Context`](crate::Context). Default: 0.
    pub seed: u64,
    /// Search for bucket size, streams and hierarchy while training; the options above are tried first. Default: none.
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
    /// Refuses what cannot be meant.
    pub(super) fn check(&self) -> Result<()> {
        self.optimizer.as_ref().map_or(Ok(()), |optimizer| optimizer.check())?;
        self.learning_rate.map_or(Ok(()), |rate| rate.check())?;
        self.groups.iter().try_for_each(ParameterGroup::check)?;
        if self.optimizer.is_none() && !self.groups.is_empty() {
            let remedy = "set the option `optimizer`, or give the groups to the framework's";
            return Err(Error::usage(
                "parameter groups are of the engine's optimizer, and there is none",
                remedy,
            ));
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
