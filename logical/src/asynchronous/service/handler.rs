//! Handlers of requests: the trait that a new primitive of this kind implements, and its arguments and results.

use super::wire::Request;
use crate::{Buffer, Communicator, Peer, Result};
use std::sync::Arc;

/// Elements of a message: the first ones of a buffer.
#[derive(Clone)]
pub(crate) struct ElementsPayload {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) len: usize,
}

impl ElementsPayload {
    pub(crate) fn whole(buffer: Arc<Buffer>) -> Self {
        let len = buffer.len();
        ElementsPayload { buffer, len }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * self.buffer.dtype().size()
    }

    /// Returns a copy of the bytes on the host; empty without a payload.
    pub(super) fn copied(payload: Option<&Self>) -> Result<Vec<u8>> {
        payload
            .map_or_else(|| Ok(Vec::new()), |it| Ok(it.buffer.read(0..it.len)?.bytes_on_host()?.into_owned()))
    }
}

/// Payload that has arrived: the first `bytes` bytes of a buffer.
pub(crate) struct ReceivedPayload {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) bytes: usize,
}

/// Reply that is sent back.
pub(crate) struct Reply {
    pub(crate) arguments: [u64; 2],
    pub(crate) payload: Option<ElementsPayload>,
}

impl Reply {
    /// Creates an empty reply, which only confirms completion.
    pub(crate) fn empty() -> Self {
        Reply { arguments: [0; 2], payload: None }
    }
}

/// A rank of a service, and its process.
#[derive(Clone)]
pub(crate) struct ServiceMember {
    /// Rank among those of the service.
    pub(crate) rank: usize,
    pub(crate) peer: Peer,
}

impl ServiceMember {
    /// Returns a rank of a communicator.
    pub(crate) fn of(comm: &Communicator, rank: usize) -> Self {
        let peer = comm.world().health().peers()[comm.world_rank(rank)].clone();
        ServiceMember { rank, peer }
    }
}

/// Outcome of a request.
pub(crate) enum Served {
    Done(Reply),
    /// The request cannot be served yet. It is retried after the next event; other requests of the same rank to the
    /// same handler wait behind it. [`Service::wake`] signals an event on this rank.
    Later,
}

/// Serves requests, on the service thread. An error ends the job: it means that a rank violates the protocol, not
/// that a request is refused.
pub(crate) trait Handler: Send + Sync {
    /// Inspects a request before its payload arrives, and returns the buffer for the payload; an empty one for
    /// requests without a payload.
    fn admit(&self, from: &ServiceMember, request: &Request) -> Result<Arc<Buffer>>;

    /// Serves a request, exclusively. The handler may keep the buffer of the payload.
    fn serve(&self, from: &ServiceMember, request: &Request, payload: &ReceivedPayload) -> Result<Served>;
}
