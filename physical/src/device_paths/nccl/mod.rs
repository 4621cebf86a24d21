//! NCCL, NVIDIA's library of collectives between GPUs: the path between ranks that each have their own GPU. It carries
//! collectives. Messages are staged, because NCCL messages have no tags, and block their stream until the other rank has
//! called.
//!
//! The crate `nccl-rs` calls NCCL, and `translation` gives its errors remedies. `connect` creates a `communicator` of all
//! ranks; that of a group is created for the first of its collectives. `link` watches a communicator, and `teardown` ends it.
//!
//! `endpoint` is the path of one endpoint, and the place to begin. Its collectives are in a `queue`, in the order in which the
//! program calls them, and the first one advances: its ranks compare their calls (`comparison`, among `members`), and `launch`
//! passes it to NCCL. `collectives` lists the collectives that NCCL carries out.
//!
//! Without the feature `cuda` nothing of this is compiled into a program.

mod collectives;
mod communicator;
mod comparison;
mod connect;
mod endpoint;
mod launch;
mod link;
mod members;
mod queue;
mod teardown;
mod translation;

pub(crate) use connect::connect;
pub use translation::version;
