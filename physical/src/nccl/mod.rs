//! NCCL, NVIDIA's library of collectives between GPUs: the path between GPUs of which each rank has one of its own.
//!
//! `library` finds NCCL and has its functions. `connect` makes a `communicator` of all ranks, and `joining` one of a group's
//! ranks, which are `members`. `link` watches a communicator, and `ending` ends it.
//!
//! `endpoint` is the path of each `operation`, and the place to begin: `messages` and `collectives` agree with the other
//! ranks by mail (`path::mail`), `order` says whose turn it is, `group` how much goes at a time, and `batch` enqueues.
//!
//! Without the feature `cuda` nothing of this is compiled into a program.

mod batch;
mod collectives;
mod communicator;
mod connect;
mod ending;
mod endpoint;
mod group;
mod joining;
mod library;
mod link;
mod members;
mod messages;
mod operation;
mod order;

pub(crate) use connect::connect;
pub use library::version;
