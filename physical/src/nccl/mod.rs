//! NCCL, NVIDIA's library of collectives between GPUs: the path between GPUs of which each rank has one of its own. Open
//! this to see which file does what.
//!
//! `library` finds NCCL and has its functions, `connect` makes a communicator of all ranks, `joining` one of a group's (whose
//! ranks `members` has), `link` watches it, `ending` ends it. `endpoint` is
//! the path: `messages` and `collectives` agree with the other ranks by mail (`path::mail`), `order` says whose turn it
//! is, `group` how much goes at a time, and `batch` enqueues. Nothing else here is compiled into a program without the feature `cuda`.

mod batch;
mod collectives;
mod connect;
mod ending;
mod endpoint;
mod group;
mod joining;
mod library;
mod link;
mod members;
mod messages;
mod order;

pub(crate) use connect::connect;
pub use library::version;
