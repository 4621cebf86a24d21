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
//! | `sequential.rs`, `random.rs` | the samplers of one rank: in order, at random, of a subset, by weight |
//! | `batch.rs` | batches of the draws of an inner sampler |
//! | `distributed.rs` | share of a shuffled data set for one rank |
//! | `sharded.rs` | share of the draws of a single-rank sampler, such as a weighted one |
//! | `load_balancing.rs`, `load_balancing_batch.rs` | the samplers of Bagua: samples of similar complexity at the same time |
//! | `cost_balanced.rs`, `assign.rs` | steps that take all ranks the same time |
//! | `elastic.rs` | batches that are the same for any number of ranks |
//! | `partition.rs` | shares for a whole training: ranks with different data |
//! | `balance.rs` | a measure of the balance of ranks |
//! | `complexity.rs` | cost of each sample: evaluated in parallel, kept in a file |
//! | `ranks.rs` | common parts of the samplers for several ranks |
//! | `mersenne.rs`, `permutation.rs`, `multinomial.rs` | PyTorch's random numbers, orders, and draws by weight |
//! | `keyed.rs` | a random order that takes no memory |
//! | `radix.rs` | sorting by cost |
//! | `file.rs` | reading of user files, up to a bound |
//! | `error.rs` | errors of the options of samplers |
//! | `dataset/` | sources of samples: the traits of datasets, and the built-in datasets |
//! | `loader/` | batches of samples, prepared by threads ahead of the training loop |

mod assign;
mod balance;
mod batch;
mod complexity;
mod cost_balanced;
pub mod dataset;
mod distributed;
mod elastic;
mod error;
mod file;
mod keyed;
mod load_balancing;
mod load_balancing_batch;
pub mod loader;
mod mersenne;
mod multinomial;
mod partition;
mod permutation;
mod radix;
mod random;
mod ranks;
mod sampler;
mod sequential;
mod sharded;

pub use balance::Balance;
pub use batch::BatchSampler;
pub use complexity::Complexities;
pub use cost_balanced::{CostBalancedOptions, CostBalancedSampler};
pub use distributed::{DistributedOptions, DistributedSampler};
pub use elastic::{ElasticOptions, ElasticSampler};
pub use error::SamplerError;
pub use keyed::KeyedPermutation;
pub use load_balancing::{LoadBalancingDistributedSampler, LoadBalancingOptions};
pub use load_balancing_batch::{BatchFunction, Batching, LoadBalancingBatchSampler};
pub use mersenne::Mersenne;
pub use partition::Partition;
pub use permutation::randperm;
pub use random::{RandomOptions, RandomSampler, SubsetRandomSampler, WeightedOptions, WeightedRandomSampler};
pub use ranks::{ForRank, Tail};
pub use sampler::{Draws, Sampler};
pub use sequential::SequentialSampler;
pub use sharded::{ShardedOptions, ShardedSampler};
