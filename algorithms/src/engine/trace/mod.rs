//! Traces of a training, and figures of its engine. The format of a trace is in [`crate::trace`].
//!
//! | file | content |
//! |---|---|
//! | `tracing` | start and end of a recording |
//! | `traced` | records of the training thread |
//! | `hook_spans` | spans of hooks, which the communication thread records |
//! | `telemetry` | waiting time, buckets, results of autotune |

mod hook_spans;
mod telemetry;
mod traced;
mod tracing;

pub(super) use hook_spans::{OpenHook, hook_begins, hook_ends};
pub use telemetry::Telemetry;
pub(super) use traced::Traced;
pub use tracing::Tracing;
