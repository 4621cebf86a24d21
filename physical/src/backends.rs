//! The transports of this build.

use crate::mixed::MixedBackend;
#[cfg(feature = "mpi")]
use crate::mpi::MpiBackend;
use crate::shm::ShmBackend;
use crate::tcp::TcpBackend;
use crate::thread::ThreadBackend;
use crate::transport::{Backend, TransportKind};
use std::sync::Arc;

/// Returns every transport that is built in, by name.
pub(crate) fn built_in() -> Vec<(TransportKind, Arc<dyn Backend>)> {
    vec![
        (TransportKind::Thread, Arc::new(ThreadBackend)),
        (TransportKind::Shm, Arc::new(ShmBackend)),
        (TransportKind::Tcp, Arc::new(TcpBackend)),
        (TransportKind::Mixed, Arc::new(MixedBackend)),
        #[cfg(feature = "mpi")]
        (TransportKind::Mpi, Arc::new(MpiBackend)),
    ]
}
