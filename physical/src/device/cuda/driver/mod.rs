//! The driver: its library, handles and errors, the list of GPUs, and compiled modules.

pub(super) mod devices;
pub(crate) mod handle;
pub(crate) mod library;
pub(super) mod modules;
pub(super) mod nvrtc;
pub(crate) mod status;
