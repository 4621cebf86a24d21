//! The trait that every transport implements: post, poll, cancel. Open this to write a backend.
//!
//! An *endpoint* is one thread's connection to all ranks of a world. Posting an operation gives a [`Ticket`] at once;
//! [`Transport::poll`] tells when it is done. Nothing happens behind the caller's back: bytes move only inside
//! [`Transport::progress`], called by whichever thread waits. Memory is passed as counted views, so that a late
//! transfer can never reach freed memory, whatever the caller does with its futures.

pub use crate::doorbell::Bell;
use crate::dtype::{DType, ReduceOp};
use crate::error::{Error, Peer, Result};
use crate::fingerprint::Fingerprint;
use crate::health::Health;
use crate::memory::{Buffer, ReadView, WriteView};
use crate::native::Collectives;
pub use crate::stream::frame::HEADER_BYTES;
use crate::tag::Tag;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// The transports of this build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// Ranks are threads of one process.
    Thread,
    /// Ranks are processes of one host, connected by rings in shared memory.
    Shm,
    /// Ranks are processes anywhere, connected by TCP.
    Tcp,
    /// Ranks are processes anywhere, each pair connected by shared memory on one host, by TCP across hosts.
    Mixed,
    /// Ranks are processes anywhere, started and connected by MPI.
    #[cfg(feature = "mpi")]
    Mpi,
}

impl TransportKind {
    /// Every transport whose ranks can be threads of one test, for matrices of tests and tables.
    pub const ALL: [TransportKind; 4] =
        [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp, TransportKind::Mixed];
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransportKind::Thread => "thread",
            TransportKind::Shm => "shm",
            TransportKind::Tcp => "tcp",
            TransportKind::Mixed => "mixed",
            #[cfg(feature = "mpi")]
            TransportKind::Mpi => "mpi",
        })
    }
}

impl FromStr for TransportKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        #[cfg(feature = "mpi")]
        if name == "mpi" {
            return Ok(TransportKind::Mpi);
        }
        #[cfg(not(feature = "mpi"))]
        if name == "mpi" {
            let what = "this build has no transport `mpi`";
            return Err(Error::usage(what, "build it with --features mpi, which needs mpicc and libclang"));
        }
        Self::ALL.into_iter().find(|kind| kind.to_string() == name).ok_or_else(|| {
            Error::usage(format!("there is no transport `{name}`"), "use one of mixed, shm, tcp, thread")
        })
    }
}

/// Names an operation that was posted and has not been taken by a successful poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Which message this is, and what its sender or receiver believes to be doing.
///
/// Between two ranks, all messages of one operation carry the same fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Identity of the message.
    pub tag: Tag,
    /// What both sides must agree on.
    pub fingerprint: Fingerprint,
}

impl Label {
    /// The operation as a whole, whatever the step.
    pub(crate) fn whole(&self) -> Label {
        Label { tag: self.tag.operation(), ..*self }
    }

    /// The error of a rank that meets `theirs` under its own label.
    pub(crate) fn mismatch(&self, theirs: Fingerprint, peer: Peer) -> Error {
        Error::Mismatch { sequence: self.tag.sequence(), mine: self.fingerprint, theirs, peer }
    }

    /// The error of a rank that gets `got` bytes where it expected another number, though both call the same operation.
    pub(crate) fn wrong_size(&self, got: u64, expected: usize, peer: Peer) -> Error {
        let of = |bytes: u64| {
            let count = bytes / self.fingerprint.dtype.size() as u64;
            Fingerprint { count, ..self.fingerprint }
        };
        Label { fingerprint: of(expected as u64), ..*self }.mismatch(of(got), peer)
    }
}

/// From whom a receive accepts a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Only this rank.
    Rank(usize),
    /// Whoever sends the tag first.
    Any,
}

impl Source {
    pub(crate) fn accepts(self, from: usize) -> bool {
        self == Source::Any || self == Source::Rank(from)
    }
}

/// What a receive does with the bytes: store them, or combine them with what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Land {
    /// `view ← message`.
    Copy,
    /// `view ← view ∘ message`, element by element.
    Reduce(ReduceOp),
    /// The first bytes of `view ← message`, which may be shorter than the view; [`Got`] has its size. For messages whose
    /// size only their sender knows.
    AtMost,
}

/// What a finished operation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Got {
    /// The other rank.
    pub peer: usize,
    /// Payload, in bytes.
    pub bytes: usize,
}

/// Bytes that this rank moved between ranks, by all endpoints of a world together: what it put on its links, and what it
/// read of memory that others have registered.
#[derive(Debug, Default)]
pub struct Traffic {
    /// By the transport that carried them.
    bytes: [AtomicU64; TransportKind::ALL.len() + cfg!(feature = "mpi") as usize],
    messages: AtomicU64,
    /// What endpoints count by themselves.
    shares: Mutex<Vec<Arc<Share>>>,
}

/// One endpoint's part of the shared-memory traffic of its world: only that endpoint's thread adds to it, so that it does
/// so without a locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Share {
    bytes: AtomicU64,
    messages: AtomicU64,
}

impl Share {
    /// Counts one message.
    pub(crate) fn sent(&self, bytes: usize) {
        self.read(bytes);
        self.messages.store(self.messages.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts bytes that were read from a peer's memory.
    pub(crate) fn read(&self, bytes: usize) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }
}

impl Traffic {
    pub(crate) fn sent(&self, path: TransportKind, bytes: usize) {
        self.bytes[path as usize].fetch_add(bytes as u64, Ordering::Relaxed);
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a part for an endpoint to count by itself.
    pub(crate) fn share(&self) -> Arc<Share> {
        let share = Arc::<Share>::default();
        self.shares().push(Arc::clone(&share));
        share
    }

    /// The sum over all endpoints that count by themselves.
    fn shared(&self, count: impl Fn(&Share) -> &AtomicU64) -> u64 {
        self.shares().iter().map(|share| count(share).load(Ordering::Relaxed)).sum()
    }

    fn shares(&self) -> MutexGuard<'_, Vec<Arc<Share>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes sent, headers included.
    pub fn bytes_sent(&self) -> u64 {
        let links: u64 = self.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum();
        links + self.shared(|share| &share.bytes)
    }

    /// Those of them that travelled by one transport: a mixed world uses shared memory and TCP.
    pub fn bytes_sent_by(&self, path: TransportKind) -> u64 {
        let bytes = self.bytes[path as usize].load(Ordering::Relaxed);
        if path == TransportKind::Shm { bytes + self.shared(|share| &share.bytes) } else { bytes }
    }

    /// Messages sent.
    pub fn messages_sent(&self) -> u64 {
        self.messages.load(Ordering::Relaxed) + self.shared(|share| &share.messages)
    }
}

/// One thread's connection to every rank of a world.
///
/// Messages between two ranks that carry equal tags are matched in the order in which they were sent. A rank finishes
/// one operation of a lane before it begins the next, so a message of a later operation proves that nothing more comes
/// for an earlier one.
pub trait Transport {
    /// Which transport this is.
    fn kind(&self) -> TransportKind;

    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// What is known about the other ranks.
    fn health(&self) -> &Arc<Health>;

    /// Something to end a park with, from another thread.
    fn bell(&self) -> Arc<dyn Bell>;

    /// Starts sending `view` to rank `to`. Done when the view may be reused; the message may still be on its way.
    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket;

    /// Starts receiving into `view` a message of exactly that size, unless `land` is [`Land::AtMost`].
    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: Land) -> Ticket;

    /// The outcome, once; the ticket is void afterwards. While pending, call [`Transport::progress`] and poll again;
    /// a backend that learns of completion otherwise wakes `context`.
    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Got>>;

    /// Gives an operation up. Never blocks; the view is released at once, or after a copy that is under way.
    fn cancel(&self, ticket: Ticket);

    /// Moves bytes that can be moved now; whether any moved.
    fn progress(&self) -> bool;

    /// Whether the ranks of this host have to share its cores, so that whoever waits should yield rather than spin.
    fn crowded(&self) -> bool;

    /// Waits until [`Transport::progress`] would move something, the bell rings, or the time is over.
    fn park(&self, at_most: Duration);

    /// Why nothing more can come from `peer`, as a verb phrase; `None` while something can.
    fn ended(&self, peer: usize) -> Option<String>;

    /// Bytes of a pending operation that have moved so far. A deadline counts from the last that did.
    fn moved(&self, ticket: Ticket) -> u64;

    /// Collectives that this backend carries out by itself, if it has any.
    fn native(&self) -> Option<&dyn Collectives> {
        None
    }

    /// The ranks for which a pending native collective still waits; empty for sends and receives.
    fn missing(&self, _ticket: Ticket) -> Vec<usize> {
        Vec::new()
    }

    /// Zeroed memory that native collectives read and write without staging copies; ordinary memory where the backend
    /// has no such thing. All ranks call this in the same order with the same arguments; it waits for them at most
    /// `limit`.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`]; [`Error::System`] and [`Error::Setup`] if a peer does not do the same.
    fn register(&self, dtype: DType, len: usize, _limit: Duration) -> Result<Buffer> {
        Buffer::zeroed(dtype, len)
    }
}
