//! Samplers that divide the samples of an epoch among ranks, regardless of their cost: the whole data set
//! (`distributed_sampler`), the draws of a single-rank sampler (`sharded`), or batches that are the same for any number
//! of ranks (`elastic`).

mod distributed_sampler;
mod elastic;
mod sharded;

pub use distributed_sampler::{DistributedOptions, DistributedSampler};
pub(super) use elastic::check_step;
pub use elastic::{ElasticOptions, ElasticSampler};
pub use sharded::{ShardedOptions, ShardedSampler};
