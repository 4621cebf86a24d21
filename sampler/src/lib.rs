//! Samplers, which assign samples to ranks, and a loader, which fetches the samples. The samplers of PyTorch and
//! Bagua are reproduced index for index, without Python; further samplers go beyond them.
//!
//! Every rank creates the same sampler with its own `rank`, and reads its own share of the order of the epoch. Ranks
//! do not communicate for it, because the order follows from the seed and the epoch alone. A job that moves between
//! PyTorch and Rust sees the same samples in the same steps. `docs/sampling.md` helps to choose a sampler.
//!
//! ```
//! use hexagram_sampler::{DistributedOptions, DistributedSampler};
//!
//! let options = DistributedOptions { len: 10, replicas: 4, rank: 1, ..Default::default() };
//! let mut sampler = DistributedSampler::new(options)?;
//! for epoch in 0..3 {
//!     sampler.set_epoch(epoch); // without it, every epoch has the same order
//!     for batch in sampler.indices().chunks(2) {
//!         println!("epoch {epoch}: this rank trains on samples {batch:?}");
//!     }
//! }
//! assert_eq!(sampler.len(), 3); // the same on all four ranks: two samples are seen twice
//! # Ok::<(), hexagram_sampler::SamplerError>(())
//! ```
//!
//! The crate has no features.
//!
//! | file | content |
//! |---|---|
//! | `sampler.rs` | the trait of all samplers: an order for each epoch that can be entered anywhere |
//! | `single_rank/` | the samplers of one rank: in order, at random, of a subset, by weight; batches |
//! | `distributed/` | shares of an epoch for each rank; batches that are the same for any number of ranks |
//! | `balanced/` | the samplers of Bagua, and others, that balance the work of ranks |
//! | `partition/` | shares for a whole training: ranks with different data |
//! | `dataset/` | sources of samples: the traits of datasets, and the built-in datasets |
//! | `loader/` | batches of samples, prepared by threads ahead of the training loop |
//! | `rng/` | PyTorch's random numbers, orders, and draws by weight; a random order that takes no memory |
//! | `parts.rs` | parts of an epoch that different numbers of ranks have drawn |
//! | `ranks.rs` | common parts of the samplers for several ranks |
//! | `file.rs` | reading of user files, up to a bound |
//! | `error.rs` | errors of the options of samplers |

mod balanced;
pub mod dataset;
mod distributed;
mod error;
mod file;
pub mod loader;
mod partition;
mod parts;
mod ranks;
mod rng;
mod sampler;
mod single_rank;

pub use balanced::{
    Balance, BatchFunction, Batching, Complexities, CostBalancedOptions, CostBalancedSampler,
    LoadBalancingBatchSampler, LoadBalancingDistributedSampler, LoadBalancingOptions,
};
pub use distributed::{
    DistributedOptions, DistributedSampler, ElasticOptions, ElasticSampler, ShardedOptions, ShardedSampler,
};
pub use error::SamplerError;
pub use partition::Partition;
pub use parts::EpochPart;
pub use ranks::{ForRank, Tail};
pub use rng::{KeyedPermutation, Mersenne, randperm};
pub use sampler::{Draws, Sampler};
pub use single_rank::{
    BatchSampler, RandomOptions, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedOptions,
    WeightedRandomSampler,
};
