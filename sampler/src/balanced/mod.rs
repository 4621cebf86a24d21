//! Samplers that balance the work of ranks: all ranks finish a step at about the same time, though samples differ in
//! cost.
//!
//! | file | content |
//! |---|---|
//! | `load_balancing`, `load_balancing_batch` | the samplers of Bagua: samples of similar complexity at the same time |
//! | `cost_balanced`, `assign` | steps that take all ranks the same time |
//! | `balance` | a measure of the balance of ranks |
//! | `complexity` | cost of each sample: evaluated in parallel, kept in a file |
//! | `radix` | sorting by cost |

mod assign;
mod balance;
mod complexity;
mod cost_balanced;
mod load_balancing;
mod load_balancing_batch;
mod radix;

pub use balance::Balance;
pub use complexity::Complexities;
pub use cost_balanced::{CostBalancedOptions, CostBalancedSampler};
pub use load_balancing::{LoadBalancingDistributedSampler, LoadBalancingOptions};
pub use load_balancing_batch::{BatchFunction, Batching, LoadBalancingBatchSampler};
