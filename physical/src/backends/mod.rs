//! The transports of this build.

pub(crate) mod mixed;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
pub(crate) mod shm;
pub(crate) mod socket;
pub(crate) mod stream;
pub(crate) mod tcp;
pub(crate) mod thread;

use crate::error::Result;
use crate::transport::{Backend, TransportKind, registered};
use mixed::MixedBackend;
#[cfg(feature = "mpi")]
use mpi::MpiBackend;
use shm::ShmBackend;
use std::sync::Arc;
use tcp::TcpBackend;
use thread::ThreadBackend;

/// Returns the implementation of a transport.
///
/// # Errors
/// [`Error::Usage`](crate::Error::Usage) if this build has none.
pub(crate) fn backend(kind: TransportKind) -> Result<Arc<dyn Backend>> {
    Ok(match kind {
        TransportKind::Thread => Arc::new(ThreadBackend),
        TransportKind::Shm => Arc::new(ShmBackend),
        TransportKind::Tcp => Arc::new(TcpBackend),
        TransportKind::Mixed => Arc::new(MixedBackend),
        #[cfg(feature = "mpi")]
        TransportKind::Mpi => Arc::new(MpiBackend),
        other => return registered(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_transport_has_an_implementation() {
        assert!(TransportKind::known().into_iter().all(|kind| backend(kind).is_ok()));
    }
}
