//! Which sample goes to which rank: PyTorch's `DistributedSampler`, index for index, without PyTorch.
//!
//! Every rank builds the same sampler with its own `rank` and reads its own share of the epoch's order; ranks
//! never talk to each other, because the order follows from the seed and the epoch alone. A job that moves
//! between PyTorch and Rust sees the same samples in the same steps.
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
//! | file | what is in it |
//! |---|---|
//! | `sampler.rs` | the trait of all samplers: an order for each epoch that can be entered anywhere |
//! | `sequential.rs` | the data set in its own order |
//! | `distributed.rs` | the share of one rank: padding, dropping, exact |
//! | `batch.rs` | batches of another sampler's draws |
//! | `permutation.rs` | the order of all samples: `torch.randperm` |
//! | `mersenne.rs` | the random numbers behind it: `torch.Generator` on the CPU |
//! | `error.rs` | what can be wrong with a sampler's options |

mod batch;
mod distributed;
mod error;
mod mersenne;
mod permutation;
mod sampler;
mod sequential;

pub use batch::BatchSampler;
pub use distributed::{DistributedOptions, DistributedSampler};
pub use error::SamplerError;
pub use mersenne::Mersenne;
pub use permutation::randperm;
pub use sampler::{Draws, Sampler};
pub use sequential::SequentialSampler;
