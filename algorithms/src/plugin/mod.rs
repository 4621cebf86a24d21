//! The interface of a plugin: the trait, and the arguments of its hooks.
//!
//! | file | content |
//! |---|---|
//! | `algorithm.rs` | the trait that an algorithm implements |
//! | `arguments/` | what its hooks receive: bucket, context, slots, fields |
//! | `about.rs`, `clipping.rs`, `optimizers.rs` | what an algorithm declares about itself |
//! | `averaging.rs`, `periodic_mean.rs` | means over all ranks, for hooks to call |
//! | `instance.rs`, `hook_presence.rs` | algorithms without their type; which hooks they implement |
//! | `check.rs`, `float.rs` | checks of options; arithmetic by float type |

mod about;
mod algorithm;
mod arguments;
mod averaging;
mod check;
mod clipping;
mod float;
mod hook_presence;
mod instance;
mod optimizers;
mod periodic_mean;

pub use about::About;
pub use algorithm::{Algorithm, Buckets, Needs, Trigram};
pub use arguments::{Bucket, Combine, Context, Fields, Ranks, Slots, Tensor};
pub(crate) use arguments::{Field, MetricsCollector, Regroup, StepInfo};
pub use averaging::{Averager, Averaging, MeanCodec};
pub(crate) use check::settled_within_step;
pub use check::{check_f32, check_option};
pub use clipping::Clipping;
pub(crate) use float::with_float;
pub use hook_presence::ImplementedHooks;
pub use instance::AnyAlgorithm;
pub(crate) use instance::Instance;
#[cfg(test)]
pub(crate) use instance::{Erased, HookFuture};
pub use optimizers::{Optimizers, StepForm};
pub use periodic_mean::ParameterMean;
