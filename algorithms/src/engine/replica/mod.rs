//! The replica of this rank, in the memory of its buckets, and its exchange with the replicas of other ranks.
//!
//! | file | content |
//! |---|---|
//! | `replica_buckets` | parameters and optimizer state in flat memory |
//! | `queues`, `programs` | the queue of each bucket; GPU programs that the queues load early |
//! | `bucket_memory` | the buckets as memory for the tensors of a framework |
//! | `groups` | parameter groups, and access to the optimizer state |
//! | `mean`, `shared` | the mean of all replicas: temporarily, and at the end; buffers of the model |
//! | `replicas` | the check that all ranks have the same replica |

mod bucket_memory;
mod groups;
mod mean;
mod programs;
mod queues;
mod replica_buckets;
mod replicas;
mod shared;

pub use bucket_memory::BucketMemory;
pub use groups::OptimizerState;
pub use mean::{Evaluation, consensus_distance};
pub(super) use queues::Queues;
pub(super) use replica_buckets::ReplicaBuckets;
pub(super) use shared::flat_broadcast;
