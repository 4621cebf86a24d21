//! The trait that every transport implements: post, poll, cancel.
//!
//! An *endpoint* is the connection of one thread to all ranks of a world. Posting an operation returns a [`Ticket`]
//! immediately; [`Transport::poll`] reports its completion. There are no background transfers: bytes move only inside
//! [`Transport::progress`], which the waiting thread calls. Memory is passed as counted views, so that a late
//! transfer never accesses freed memory, even if the caller leaks its futures.

mod backend;
pub mod devices;
pub mod fingerprint;
pub(crate) mod matching;
pub(crate) mod message;
pub mod native;
pub mod operation;
pub(crate) mod pages;
pub mod ranks;
pub mod tag;
pub(crate) mod tickets;
mod traffic;

pub use crate::bootstrap::hosts::ProbeResult;
pub use crate::bootstrap::meeting::peer_info::ANNOUNCEMENT_BYTES;
use crate::control::health::Health;
use crate::device::Queue;
use crate::error::{Error, Result};
use crate::memory::dtype::DType;
use crate::memory::{Buffer, ReadView, WriteView};
use crate::runtime::Park;
pub use crate::waiting::doorbell::Bell;
pub(crate) use backend::registered;
pub use backend::{
    Backend, Fabric, Introduction, Membership, Prepared, Sharing, Site, TransportKind, register,
};
use devices::Devices;
pub use matching::{Early, Match, Matcher, Posted};
pub use message::{Label, ReceiveMode, Received, Source};
use native::Collectives;
pub use pages::{SharedMemory, SharedPages};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
pub use tickets::{Ticket, Tickets};
pub use traffic::{Tally, Traffic};

/// Bytes that every message counts in addition to its payload, on every transport: the size of tag, fingerprint and
/// length on a byte stream. A transport without frames counts them too, so that counts agree.
pub const HEADER_BYTES: usize = 48;

/// One thread's connection to every rank of a world.
///
/// Messages between two ranks with equal tags are matched in the order of sending. A rank finishes one operation of a
/// lane before it begins the next, so that a message of a later operation proves that nothing more comes for an
/// earlier one.
///
/// ```
/// # use hexagram_physical::testing::spawn;
/// # use hexagram_physical::{Buffer, DType, TransportKind};
/// # use hexagram_physical::transport::{Label, ReceiveMode, Source};
/// # use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
/// # use hexagram_physical::tag::Tag;
/// # use std::{future::poll_fn, time::Duration};
/// spawn(TransportKind::Thread, 2, |world| {
///     let endpoint = world.open(0)?;
///     let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::I32, 1);
///     let label = Label { tag: Tag::new(0, 0, 0, 0)?, fingerprint };
///     let buffer = Buffer::from_slice(&[7 * world.rank() as i32])?;
///     let ticket = match world.rank() {
///         0 => endpoint.post_recv(Source::Rank(1), label, buffer.write_all()?, ReceiveMode::Copy),
///         _ => endpoint.post_send(0, label, buffer.read_all()?),
///     };
///     let done = poll_fn(|context| {
///         endpoint.progress();
///         endpoint.poll(ticket, context)
///     });
///     hexagram_physical::drive::block_on(&*endpoint, done)?;
///     assert_eq!(*buffer.host::<i32>()?, [7]);
///     Ok::<(), hexagram_physical::Error>(())
/// });
/// ```
pub trait Transport {
    /// Returns the name of the transport.
    fn kind(&self) -> TransportKind;

    /// Returns this rank.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn size(&self) -> usize {
        self.health().peers().len()
    }

    /// Returns the known state of the other ranks.
    fn health(&self) -> &Arc<Health>;

    /// Returns a bell with which another thread ends the park of this endpoint.
    fn bell(&self) -> Arc<dyn Bell>;

    /// Starts sending `view` to rank `to`. Done when the view may be reused; the message may still be on its way.
    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket;

    /// Starts receiving into `view` a message of exactly that size, unless `land` is [`ReceiveMode::AtMost`].
    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket;

    /// Takes the outcome, once; the ticket is void afterwards. While pending, call [`Transport::progress`] and poll again; a
    /// backend that learns of completion in a different way wakes `context`.
    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Received>>;

    /// Cancels an operation. Never blocks; the view is released immediately, or after a running copy.
    fn cancel(&self, ticket: Ticket);

    /// Moves bytes that can be moved now; returns true if any moved.
    fn progress(&self) -> bool;

    /// Returns true if the ranks of this host outnumber its cores, so that waiting threads should yield rather than
    /// spin.
    fn crowded(&self) -> bool;

    /// Waits until [`Transport::progress`] would move bytes, the bell rings, or the time has passed.
    fn park(&self, at_most: Duration);

    /// Returns the reason why no further message can come from `peer`, as a verb phrase; `None` while one can.
    fn ended(&self, peer: usize) -> Option<String>;

    /// Returns the bytes of a pending operation that have moved so far. A deadline counts from the last byte that moved.
    fn moved(&self, ticket: Ticket) -> u64;

    /// Returns the native collectives of this backend, if it has any.
    fn native(&self) -> Option<&dyn Collectives> {
        None
    }

    /// Returns the support of this endpoint for device memory, if it sends from and receives into device memory itself. For all
    /// other transports, which see host memory only, device memory travels through the host.
    fn devices(&self) -> Option<&dyn Devices> {
        None
    }

    /// Returns the memory of the host that all ranks share, if they share any.
    fn shared_memory(&self) -> Option<&dyn SharedMemory> {
        None
    }

    /// Adds to `ready` the numbers ([`drive::numbered`](crate::waiting::drive::numbered)) of the futures whose operations have
    /// ended since the last call. Returns true if `ready` is complete, so that only those futures need polling. The
    /// default reports none.
    fn take_ready(&self, ready: &mut Vec<usize>) -> bool {
        let _ = ready;
        false
    }

    /// Creates zeroed memory for writes by `queue`, on which native collectives need no copies. It is ordinary memory
    /// if the backend has none, and on all ranks if any of them uses a queue of a device. A collective call with the
    /// same type and length, in the same order; it waits for the others at most `limit`.
    ///
    /// # Errors
    /// As [`Buffer::zeroed_on`]; [`Error::System`] and [`Error::Setup`] if a peer does not do the same.
    fn register(&self, queue: &Queue, dtype: DType, len: usize, _limit: Duration) -> Result<Buffer> {
        Buffer::zeroed_on(queue, dtype, len)
    }
}

impl Park for &dyn Transport {
    fn bell(&self) -> Arc<dyn Bell> {
        Transport::bell(*self)
    }

    fn park(&self, at_most: Duration) {
        Transport::park(*self, at_most);
    }
}

impl Received {
    /// Checks the outcome that `transport`, possibly a user's, reports for an operation on a view of `room` bytes, and returns
    /// it.
    ///
    /// # Errors
    /// [`Error::Usage`] for a rank that does not exist, and for more bytes than the view has.
    pub fn checked(self, transport: &dyn Transport, room: usize) -> Result<Self> {
        let Received { peer, bytes } = self;
        let ranks = transport.health().peers().len();
        if peer < ranks && bytes <= room {
            return Ok(self);
        }
        let kind = transport.kind();
        let what = format!("{kind} reports {bytes} bytes of rank {peer}, among {ranks} ranks");
        let room = if bytes > room { format!(" and room for {room} bytes") } else { String::new() };
        Err(Error::usage(what + &room, "correct the transport"))
    }
}
