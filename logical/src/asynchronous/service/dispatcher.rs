//! The dispatcher of a service: it sends the requests of this rank, and serves those of other ranks.
//!
//! ```text
//! exchange = request [payload] reply [result] payload and result of up to 1 KiB are part of request and reply request = one
//! tag, from anyone as many as 16 of a rank to another are under way, each in a slot payload = tag of (sender's slot, number)
//! follows immediately: its receiver already knows where it belongs reply,result = tag of (sender's slot, number) awaited
//! before the request is sent leave = request without reply nothing more comes from this rank
//! ```
//!
//! Requests of one rank to one handler are served one after another, in the order in which they were made. Other
//! requests overtake them, so that neither a slow link nor a postponed request delays other ranks.

use super::handler::{ElementsPayload, Handler, ReceivedPayload, ServiceMember};
use super::wire::{INLINE_BYTES, REQUEST_BYTES, Request, SLOTS, violation};
use crate::{Buffer, Call, Communicator, DType, Error, Peer, Result};
use hexagram_physical::error::ErrorContext;
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::stopwatch::Stopwatch;
use hexagram_physical::tag::Tag;
use hexagram_physical::transport::Label;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

/// Requests, payloads and replies are counted separately.
const REQUESTS: u32 = 2;
pub(super) const PAYLOADS: u32 = 3;
pub(super) const REPLIES: u32 = 4;

/// Handlers of this rank, by number.
pub(super) type Handlers = Mutex<Vec<Arc<dyn Handler>>>;

/// A request of this rank to send.
pub(crate) struct OutgoingRequest {
    pub(crate) handler: u32,
    pub(crate) verb: u16,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) arguments: [u64; 3],
    pub(crate) payload: Option<ElementsPayload>,
    /// Buffer for the payload of the reply, which may be smaller.
    pub(crate) into: Option<Arc<Buffer>>,
}

/// Reply to a request of this rank.
pub(crate) struct Response {
    pub(crate) arguments: [u64; 2],
    /// [`OutgoingRequest::into`], and the number of bytes in it.
    pub(crate) payload: Option<ReceivedPayload>,
}

/// A request of another rank, with its inline payload.
pub(super) struct IncomingRequest {
    pub(super) request: Request,
    pub(crate) payload: Vec<u8>,
}

/// Requests of this rank to one other rank.
pub(super) struct PeerQueue {
    pub(crate) free: Vec<u16>,
    /// Number of requests so far, and the number of those with a slot.
    pub(super) made: u64,
    pub(super) started: u64,
}

/// State of the service thread, shared by all its tasks.
pub(crate) struct Dispatcher {
    pub(crate) comm: Communicator,
    handlers: Arc<Handlers>,
    pub(super) lines: RefCell<Vec<PeerQueue>>,
    /// Requests that wait for an earlier one of the same rank to the same handler. An entry exists while one is
    /// served.
    pub(super) queues: RefCell<HashMap<(usize, u32), VecDeque<IncomingRequest>>>,
    /// True for each rank that will send no more requests.
    pub(crate) left: RefCell<Vec<bool>>,
    /// Number of postponed requests.
    pub(super) postponed: Cell<usize>,
    /// Time since the last message of another rank.
    pub(super) last_heard: Cell<Stopwatch>,
    /// First error of this rank.
    failure: OnceCell<Error>,
}

pub(super) fn bytes_of(buffer: &Buffer) -> usize {
    buffer.len() * buffer.dtype().size()
}

/// Returns the label of every request.
pub(crate) fn request_label() -> Result<Label> {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::U8, 0);
    Ok(Label { tag: Tag::new(REQUESTS, 0, 0, 0)?, fingerprint })
}

/// Creates a buffer with room for the longest request.
pub(super) fn mailbox() -> Result<Buffer> {
    Buffer::zeroed(DType::U8, REQUEST_BYTES + INLINE_BYTES)
}

impl Dispatcher {
    pub(super) fn new(comm: Communicator, handlers: Arc<Handlers>) -> Self {
        let line = |_| PeerQueue { free: (0..SLOTS).collect(), made: 0, started: 0 };
        let lines = RefCell::new((0..comm.size()).map(line).collect());
        let left = RefCell::new(vec![false; comm.size()]);
        let last_heard = Cell::new(Stopwatch::start());
        let postponed = Cell::new(0);
        let queues = RefCell::default();
        let failure = OnceCell::new();
        Dispatcher { comm, handlers, lines, queues, left, postponed, last_heard, failure }
    }

    /// Ends all tasks, here and on other ranks, because of `error`. Returns the first error, if `error` is only its
    /// consequence.
    pub(crate) fn fail(&self, error: Error) -> Error {
        if matches!(error, Error::Poisoned { .. }) {
            return self.failure().unwrap_or(error);
        }
        let _ = self.failure.set(error.clone());
        self.comm.give_up(&error);
        error
    }

    /// Returns the first error, here or on another rank.
    pub(crate) fn failure(&self) -> Option<Error> {
        let verdict = self.comm.world().health().verdict()?;
        Some(self.failure.get().cloned().unwrap_or_else(|| verdict.error(ErrorContext::Nothing)))
    }

    /// Counts a request as postponed, until the returned value is dropped.
    pub(super) fn postpone(&self) -> Postponed<'_> {
        self.postponed.update(|count| count + 1);
        Postponed(&self.postponed)
    }

    pub(crate) fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Returns a rank with its host and process.
    pub(crate) fn member(&self, rank: usize) -> ServiceMember {
        ServiceMember::of(&self.comm, rank)
    }

    /// Returns the process that a rank is.
    pub(crate) fn peer(&self, rank: usize) -> Peer {
        self.member(rank).peer
    }

    /// Waits until `ready` returns a value. A failure, here or on another rank, ends the wait.
    pub(crate) async fn until<T>(
        &self,
        label: &Label,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        poll_fn(|_| match ready() {
            Ok(Some(it)) => Poll::Ready(Ok(it)),
            Err(error) => Poll::Ready(Err(error)),
            Ok(None) => match self.comm.begin(*label) {
                Ok(_) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        })
        .await
    }

    /// Polls a future that may call user code, such as the update of a server. A panic in it ends the service like an
    /// error.
    pub(super) async fn guarded<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
            polled.unwrap_or_else(|panic| {
                Poll::Ready(Err(self.fail(Error::panicked("the handler of a request", &*panic))))
            })
        })
        .await
    }

    pub(crate) fn call(&self, series: u32, request: &Request) -> Result<Call<'_>> {
        self.comm.begin(label(series, request)?)
    }

    /// Copies bytes of `from` to the beginning of a buffer.
    pub(crate) fn store(&self, from: usize, bytes: &[u8], buffer: &Buffer) -> Result<()> {
        let whole = bytes.len().is_multiple_of(buffer.dtype().size());
        if !whole || bytes.len() > bytes_of(buffer) {
            return Err(self.violation(from, "a payload that does not fit"));
        }
        buffer.write(0..bytes.len() / buffer.dtype().size())?.copy_from_bytes(bytes)
    }

    /// Returns the error for a rank that violates the protocol.
    pub(super) fn violation(&self, from: usize, what: &str) -> Error {
        violation(&self.peer(from), what)
    }

    pub(super) fn handler(&self, from: usize, request: &Request) -> Result<Arc<dyn Handler>> {
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        let handler = handlers.get(request.handler as usize).cloned();
        handler.ok_or_else(|| self.violation(from, "a request for an unknown handler"))
    }
}

pub(super) struct Postponed<'a>(&'a Cell<usize>);

impl Drop for Postponed<'_> {
    fn drop(&mut self) {
        self.0.update(|count| count - 1);
    }
}

/// Returns the label of a message that belongs to a request.
pub(crate) fn label(series: u32, request: &Request) -> Result<Label> {
    let tag = Tag::new(series, request.slot.into(), request.number, 0)?;
    Ok(Label { tag, fingerprint: request.fingerprint })
}
