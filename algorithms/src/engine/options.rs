//! How the engine works: everything that is not the algorithm's to say.

use crate::optimizer::Optimizer;
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

/// How the engine works. All ranks must use the same.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Largest bucket, in bytes; a larger parameter has a bucket of its own.
    pub bucket_bytes: usize,
    /// Largest first bucket, in bytes: small, so that communication begins early.
    pub first_bucket_bytes: usize,
    /// In which order buckets are filled.
    pub order: Order,
    /// What to do with parameters without gradient.
    pub unused: Unused,
    /// What the engine steps with; `None` leaves that to the framework.
    pub optimizer: Option<Arc<dyn Optimizer>>,
    /// Whether to communicate within each host first, and then between hosts, where the algorithm means all ranks.
    pub hierarchical: bool,
    /// How many buckets may be communicated at once.
    pub streams: usize,
    /// Largest norm of all gradients together, after communication; larger ones are scaled down to it.
    pub clip_norm: Option<f64>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            bucket_bytes: 10 << 20,
            first_bucket_bytes: 1 << 20,
            order: Order::Observed,
            unused: Unused::Error,
            optimizer: None,
            hierarchical: false,
            streams: usize::MAX,
            clip_norm: None,
        }
    }
}
