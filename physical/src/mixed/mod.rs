//! Ranks as processes on some hosts, several on each: shared memory within a host, TCP across. When you would want it:
//! always, unless you measure one of the two; it is the default.
//!
//! Two ranks share memory if they run on one kernel and in one network namespace, unless the user has named their hosts,
//! and if they let each other in when they try: names prove nothing. Each pair of ranks is decided by itself and stays as
//! it is. Where all ranks are on one host,
//! or none are, the endpoint is exactly that of `shm` or `tcp`.

mod connect;
mod endpoint;
mod link;
#[cfg(test)]
mod tests;

pub(crate) use connect::MixedBackend;
