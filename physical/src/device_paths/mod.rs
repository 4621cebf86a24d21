//! How the memory of devices travels between ranks: through the host, between processes of one host, or by NCCL.

pub(crate) mod device_path;
#[cfg(feature = "cuda")]
pub(crate) mod ipc;
#[cfg(test)]
#[cfg(feature = "cuda")]
pub(crate) mod missing_sync;
#[cfg(feature = "cuda")]
pub mod nccl;
pub(crate) mod staging;
