//! The transports of this build.

use crate::error::Result;
use crate::mixed::MixedBackend;
#[cfg(feature = "mpi")]
use crate::mpi::MpiBackend;
use crate::shm::ShmBackend;
use crate::tcp::TcpBackend;
use crate::thread::ThreadBackend;
use crate::transport::{Backend, TransportKind, registered};
use std::sync::Arc;

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
