//! Transport between ranks that are processes on some hosts, several on each: shared memory within a host, TCP across.
//! It is the default; use another one only to measure shared memory or TCP by itself.
//!
//! Two ranks share memory if they run on one kernel and in one network namespace, unless the user has named their
//! hosts, and if they can connect to each other when they try: names prove nothing. Each pair of ranks is decided
//! separately and for the whole run. If all ranks are on one host, or each is on a host of its own, the endpoint is
//! exactly that of `shm` or `tcp`.

mod connect;
mod endpoint;
mod link;
#[cfg(test)]
mod tests;

pub(crate) use connect::MixedBackend;
