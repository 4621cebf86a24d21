//! Where peers call a rank: the listeners of its transport, opened before the peers are known. Open this when you add a
//! transport between processes.

use super::Fabric;
use crate::bootstrap::membership::Membership;
use crate::bootstrap::peer_info::PeerInfo;
use crate::error::{Error, Result};
use crate::mixed::MixedFabric;
#[cfg(feature = "mpi")]
use crate::mpi::{MpiDoor, MpiFabric};
use crate::shm::{ShmDoor, ShmFabric};
use crate::socket::Tls;
use crate::tcp::{TcpDoor, TcpFabric};
use crate::transport::TransportKind;
use std::net::SocketAddr;
use std::sync::Arc;

/// A transport's listener, opened before the peers are known.
pub(super) enum Door {
    Shm(ShmDoor),
    Tcp(TcpDoor),
    Mixed(ShmDoor, TcpDoor),
    #[cfg(feature = "mpi")]
    Mpi(MpiDoor),
}

impl Door {
    /// Opens what `transport` needs, at `interfaces`; callers over TCP have to speak `tls`, if it is given.
    pub(super) fn open(
        transport: TransportKind,
        interfaces: &[SocketAddr],
        tls: Option<Tls>,
    ) -> Result<Self> {
        match transport {
            TransportKind::Shm => ShmDoor::open().map(Door::Shm),
            TransportKind::Tcp => TcpDoor::open(interfaces, tls).map(Door::Tcp),
            TransportKind::Mixed => Ok(Door::Mixed(ShmDoor::open()?, TcpDoor::open(interfaces, tls)?)),
            TransportKind::Thread => Err(Error::setup(
                "the thread transport connects threads of one process, not processes",
                "use mixed, shm or tcp, or start the ranks with World::threads",
            )),
            #[cfg(feature = "mpi")]
            TransportKind::Mpi => Err(Error::setup(
                "ranks of the mpi transport learn from MPI where to meet",
                "start them with mpirun",
            )),
        }
    }

    /// Makes of it what connects this rank's endpoints.
    pub(super) fn into_fabric(self, member: Arc<Membership>) -> Result<Arc<dyn Fabric>> {
        Ok(match self {
            Door::Shm(door) => Arc::new(ShmFabric::new(door, member)?),
            Door::Tcp(door) => Arc::new(TcpFabric::new(door, member)?),
            Door::Mixed(shm, tcp) => Arc::new(MixedFabric::new(shm, tcp, member)?),
            #[cfg(feature = "mpi")]
            Door::Mpi(door) => Arc::new(MpiFabric::new(door, member)),
        })
    }

    /// Writes down where it is.
    pub(super) fn announce(&self, info: &mut PeerInfo) {
        match self {
            Door::Shm(door) => info.shm = door.address(),
            Door::Tcp(door) => info.tcp = door.address(),
            Door::Mixed(shm, tcp) => (info.shm, info.tcp) = (shm.address(), tcp.address()),
            #[cfg(feature = "mpi")]
            Door::Mpi(_) => {}
        }
    }
}
