//! Samplers say which sample goes to which rank: PyTorch's and Bagua's, index for index, without Python, and some that
//! go beyond; and a loader fetches the samples.
//!
//! Every rank builds the same sampler with its own `rank` and reads its own share of the epoch's order; ranks
//! never talk to each other, because the order follows from the seed and the epoch alone. A job that moves
//! between PyTorch and Rust sees the same samples in the same steps. `docs/sampling.md` says which sampler is for what.
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
//! | file | what is in it |
//! |---|---|
//! | `sampler.rs` | the trait of all samplers: an order for each epoch that can be entered anywhere |
//! | `sequential.rs`, `random.rs` | the samplers of one rank: in order, at random, of a subset, by weight |
//! | `batch.rs` | batches of another sampler's draws |
//! | `distributed.rs` | one rank's share of a shuffled data set |
//! | `sharded.rs` | one rank's share of what a sampler of one rank draws, by weight for example |
//! | `load_balancing.rs`, `load_balancing_batch.rs` | Bagua's: samples of similar complexity at the same time |
//! | `cost_balanced.rs`, `assign.rs` | steps that take all ranks equally long |
//! | `elastic.rs` | batches that are the same for any number of ranks, of any number of samples |
//! | `partition.rs` | shares for a whole training: data that differ between ranks |
//! | `balance.rs` | how well ranks are balanced, as a number |
//! | `complexity.rs` | how much work each sample is: evaluated in parallel, kept in a file |
//! | `ranks.rs` | what samplers of many ranks have in common |
//! | `mersenne.rs`, `permutation.rs`, `multinomial.rs` | PyTorch's random numbers, orders, and draws by weight |
//! | `keyed.rs` | a random order that takes no memory |
//! | `radix.rs` | sorting by cost |
//! | `file.rs` | files that users name, up to a bound |
//! | `error.rs` | what can be wrong with a sampler's options |
//! | `dataset/` | where samples come from: the traits of datasets, and the datasets that ship |
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
