//! Connection: rank 0 draws the name of a communicator, sends it to the others by the host transport, and NCCL connects them.

use super::communicator::{begin, connected, draw};
use super::endpoint::{NcclPath, NcclState};
use super::link::SharedCommunicator;
use super::members::GroupMembers;
use super::translation::version;
use crate::device::cuda;
use crate::device_paths::device_path::{DevicePath, PathContext, control_message};
use crate::error::Result;
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::operation::{Operation, OperationContext, Poison};
use crate::transport::{Label, ReceiveMode, Source, Transport, TransportKind};
use crate::waiting::drive::block_on;
use nccl_rs::UniqueId;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Connects the GPUs of all ranks, each of which has one of its own.
///
/// # Errors
/// [`Error::Setup`](crate::Error::Setup) without NCCL; [`Error::System`](crate::Error::System) with NCCL's reason if it
/// cannot connect them; [`Error::Deadline`](crate::Error::Deadline) if it takes longer than the site's limit; failures of
/// other ranks.
pub(crate) fn connect(site: &PathContext<'_>) -> Result<Rc<dyn DevicePath>> {
    version()?;
    let host = site.transport;
    let queue = cuda::same_device(site.queue)?;
    let id = spread(&**host, site.limit)?;
    let world = GroupMembers::new(&(0..host.size()).collect(), host.rank())?;
    let comm = begin(site.queue, (host.rank(), host.size()), id)?;
    let comm = connected(site.queue, comm, host.health(), site.limit)?;
    let bell = host.bell();
    let link = SharedCommunicator::new(comm, queue.clone(), (Arc::clone(host.health()), bell), site.limit);
    let path = Rc::new(NcclPath {
        host: Rc::clone(host),
        link: Arc::new(link),
        world,
        queue,
        tally: site.traffic.tally(TransportKind::Nccl),
        state: RefCell::new(NcclState::default()),
        meanwhile: OnceCell::new(),
    });
    path.go_on_while_waiting();
    Ok(path)
}

/// Returns the name that rank 0 has drawn and sent to all others.
fn spread(host: &dyn Transport, limit: Duration) -> Result<UniqueId> {
    let fingerprint = Fingerprint::new(OperationKind::Broadcast, DType::U8, UniqueId::SIZE);
    let label = Label { fingerprint, ..control_message::label(1, 0)? };
    let poison = Poison::default();
    let terms = OperationContext { transport: host, poison: &poison, deadline: limit };
    let operation = |ticket, peer| Operation::new(terms, ticket, Source::Rank(peer), label);
    if host.rank() > 0 {
        let mut id = [0; UniqueId::SIZE];
        let named = Buffer::from_slice(&id)?;
        let ticket = host.post_recv(Source::Rank(0), label, named.write_all()?, ReceiveMode::Copy);
        block_on(host, operation(ticket, 0))?;
        id.copy_from_slice(&named.host::<u8>()?);
        return Ok(UniqueId::from_bytes(id));
    }
    let id = draw()?;
    let name = Buffer::from_slice(id.as_bytes())?;
    let post = |peer| Ok((host.post_send(peer, label, name.read_all()?), peer));
    let posted = (1..host.size()).map(post).collect::<Result<Vec<_>>>()?;
    posted.into_iter().try_for_each(|(ticket, peer)| block_on(host, operation(ticket, peer)).map(drop))?;
    Ok(id)
}
