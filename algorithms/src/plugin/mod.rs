//! The interface of a plugin: the trait, and the arguments of its hooks.

mod about;
mod algorithm;
mod averaging;
mod bucket;
mod check;
mod clipping;
mod context;
mod fields;
mod float;
mod hook_presence;
mod instance;
mod metrics;
mod optimizers;
mod periodic_mean;
mod ranks;
mod slots;

pub use about::About;
pub use algorithm::{Algorithm, Buckets, Needs, Trigram};
pub use averaging::{Averager, Averaging, MeanCodec};
pub use bucket::{Bucket, Tensor};
pub(crate) use check::settled_within_step;
pub use check::{check_f32, check_option};
pub use clipping::Clipping;
pub use context::Context;
pub(crate) use context::StepInfo;
pub use fields::Fields;
pub(crate) use fields::{Field, Regroup};
pub(crate) use float::with_float;
pub use hook_presence::ImplementedHooks;
pub use instance::AnyAlgorithm;
pub(crate) use instance::Instance;
#[cfg(test)]
pub(crate) use instance::{Erased, HookFuture};
pub use metrics::Combine;
pub(crate) use metrics::MetricsCollector;
pub use optimizers::{Optimizers, StepForm};
pub use periodic_mean::ParameterMean;
pub use ranks::Ranks;
pub use slots::Slots;
