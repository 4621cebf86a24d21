//! How the engine works: everything that is not the algorithm's to say.

use super::Autotune;
use super::clip::check_limit;
use super::precision::LossScale;
use crate::optimizer::Optimizer;
use hexagram_logical::Result;
use std::sync::Arc;

/// What to do with a parameter that got no gradient in a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unused {
    /// Refuse, naming it, on every rank.
    #[default]
    Error,
    /// Count this rank's gradient as zero. The other ranks' gradients still count.
    Zero,
}

/// In which order buckets are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The order in which the first backward pass of rank 0 completes the gradients. Nothing of that one pass is
    /// communicated before it is over.
    #[default]
    Observed,
    /// The reverse of the order in which the parameters are listed, from the first pass on.
    Listed,
}

/// What [`DataParallel::synchronize_buffers`](super::DataParallel::synchronize_buffers) does with a model's buffers: what
/// is no parameter but belongs to a replica, such as the running statistics of a normalization.
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

/// How the engine works. All ranks must use the same.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// A bucket ends with the parameter that makes it so large, in bytes, or larger.
    pub bucket_bytes: usize,
    /// The same for the first bucket: small, so that communication begins early.
    pub first_bucket_bytes: usize,
    /// In which order buckets are filled.
    pub order: Order,
    /// What to do with parameters without gradient.
    pub unused: Unused,
    /// What is done with buffers before a training forward pass.
    pub buffers: Buffers,
    /// What the engine steps with; `None` leaves that to the framework.
    pub optimizer: Option<Arc<dyn Optimizer>>,
    /// Whether to communicate within each host first, and then between hosts, where the algorithm means all ranks.
    pub hierarchical: bool,
    /// How many buckets may be communicated at once; 0 counts as 1.
    pub streams: usize,
    /// Largest norm of all gradients together, after communication; larger ones are scaled down to it.
    pub clip_norm: Option<f64>,
    /// For gradients in 16 bits: what the loss is multiplied with. Buckets then wait for the end of the backward pass, as
    /// no rank may step if a gradient of any rank has overflowed: nothing overlaps.
    pub loss_scale: Option<LossScale>,
    /// Whether ranks may run out of data at different times, and then [`join`](super::Uneven::join). Each step of a
    /// synchronous algorithm then begins with a message of 16 bytes from every rank to all others, which waits for all.
    pub uneven: bool,
    /// Whether to find bucket size, streams and hierarchy while training, and how; those above are tried first.
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
            hierarchical: false,
            streams: usize::MAX,
            clip_norm: None,
            loss_scale: None,
            uneven: false,
            autotune: None,
        }
    }
}

impl EngineOptions {
    /// Refuses what cannot be meant.
    pub(super) fn check(&self) -> Result<()> {
        self.optimizer.as_ref().map_or(Ok(()), |optimizer| optimizer.check())?;
        self.clip_norm.map_or(Ok(()), check_limit)?;
        self.autotune.as_ref().map_or(Ok(()), Autotune::check)?;
        self.loss_scale.map_or(Ok(()), |scale| scale.check())
    }
}
