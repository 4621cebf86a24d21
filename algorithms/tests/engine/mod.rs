//! The guarantees of the engine under every algorithm: resumption, clipping, switches, devices, traces, bytes, and edge
//! cases. Each file is a module here.

mod autotune;
mod clipping;
mod context;
mod copies;
mod displaced;
mod edges;
mod fitting_optimizers;
mod groups;
mod killed;
mod late;
mod mean;
#[cfg(feature = "cuda")]
mod missing_sync;
mod mixed_devices;
#[cfg(feature = "cuda")]
mod on_nccl;
mod payload;
mod resume;
mod switching;
mod trace;
mod virtual_time;
mod warm_ups;
mod warmed_up;
