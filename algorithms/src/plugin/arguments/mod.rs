//! Arguments of the hooks of an algorithm, and the content of the context of a hook.
//!
//! | file | content |
//! |---|---|
//! | `bucket` | tensors that are communicated together |
//! | `context` | the step, and arithmetic on buffers |
//! | `ranks` | means over all ranks, which the context and the background use |
//! | `metrics` | named numbers that hooks report |
//! | `slots` | the state of the engine optimizer |
//! | `fields` | the state of the algorithm in a checkpoint |

mod bucket;
mod context;
mod fields;
mod metrics;
mod ranks;
mod slots;

pub use bucket::{Bucket, Tensor};
pub use context::Context;
pub(crate) use context::StepInfo;
pub use fields::Fields;
pub(crate) use fields::{Field, Regroup};
pub use metrics::Combine;
pub(crate) use metrics::MetricsCollector;
pub use ranks::Ranks;
pub use slots::Slots;
