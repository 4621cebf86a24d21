//! NCCL, NVIDIA's library of collectives between GPUs. Open this to see which version of it there is.
//!
//! `library` finds it and has its functions. Nothing else here is compiled into a program without the feature `cuda`.

#[allow(dead_code, reason = "the endpoint, which calls them, is yet to come")]
mod library;

pub use library::version;
