//! Transport between processes on one or more hosts: shared memory within a host, TCP between hosts. It is the
//! default; use a different one only to measure shared memory or TCP alone.
//!
//! Two ranks share memory if they run on one kernel and in one network namespace, unless the user has named their
//! hosts, and if an attempt to connect succeeds, since names are not proof. Each pair of ranks is decided separately
//! and for the whole run. If all ranks are on one host, or each is on a separate host, the endpoint is exactly that
//! of `shm` or `tcp`.

mod connect;
mod endpoint;
mod link;
#[cfg(test)]
mod tests;

pub(crate) use connect::MixedBackend;
