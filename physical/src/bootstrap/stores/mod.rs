//! Key-value stores through which ranks meet: those of the caller, and those of launchers.

pub(crate) mod launcher_store;
pub(crate) mod store;
