//! The service's thread: it carries this rank's requests to others, and theirs out here.
//!
//! ```text
//! conversation = request [payload] reply [result]     payload and result of up to 1 KiB ride along with request and reply
//! request      = one tag, from anyone                 as many as 16 of a rank to another are under way, each in a slot
//! payload      = tag of (sender's slot, number)       follows at once: its receiver knows where it belongs by now
//! reply,result = tag of (sender's slot, number)       awaited before the request is sent
//! leave        = request without reply                nothing more comes from this rank
//! ```
//!
//! Requests of one rank to one handler are carried out one after another, in the order in which they were made. Others
//! overtake them, so that a slow link or a request that has to wait holds nobody else up.

use super::service::{Handler, Landed, Reply, Served};
use super::wire::{Head, INLINE_BYTES, LEAVE, REPLY_BYTES, REQUEST_BYTES, Request, SLOTS, nonsense};
use crate::{Buffer, Call, Communicator, DType, Error, Land, Peer, Result};
use hexagram_physical::error::During;
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::tag::Tag;
use hexagram_physical::transport::Label;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

/// Tags of requests, of payloads, and of what comes back, are counted apart.
const REQUESTS: u32 = 2;
const PAYLOADS: u32 = 3;
const REPLIES: u32 = 4;

/// What this rank serves, by number.
pub(super) type Handlers = Mutex<Vec<Arc<dyn Handler>>>;

/// What a message carries: the first elements of a buffer.
#[derive(Clone)]
pub(crate) struct Payload {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) len: usize,
}

impl Payload {
    pub(crate) fn whole(buffer: Arc<Buffer>) -> Self {
        let len = buffer.len();
        Payload { buffer, len }
    }

    fn bytes(&self) -> usize {
        self.len * self.buffer.dtype().size()
    }

    /// A copy, where there is something to copy.
    fn copied(payload: Option<&Self>) -> Result<Vec<u8>> {
        payload.map_or_else(|| Ok(Vec::new()), |it| Ok(it.buffer.read(0..it.len)?.bytes().to_vec()))
    }
}

/// A request of this rank, to be sent.
pub(crate) struct Ask {
    pub(crate) handler: u32,
    pub(crate) verb: u16,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) arguments: [u64; 3],
    pub(crate) payload: Option<Payload>,
    /// Where the payload of the reply belongs, which may be smaller.
    pub(crate) into: Option<Arc<Buffer>>,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) arguments: [u64; 2],
    /// [`Ask::into`], and how much of it was filled.
    pub(crate) payload: Option<Landed>,
}

/// A request of another rank, and what rode along.
struct Incoming {
    request: Request,
    payload: Vec<u8>,
}

/// Requests of this rank to one other.
struct Line {
    free: Vec<u16>,
    /// Requests so far, and how many of them have got their slot.
    made: u64,
    started: u64,
}

/// What all that goes on on the service's thread has in common.
pub(crate) struct Core {
    pub(super) comm: Communicator,
    handlers: Arc<Handlers>,
    lines: RefCell<Vec<Line>>,
    /// Requests that wait for one of the same rank to the same handler; there is an entry while one is carried out.
    queues: RefCell<HashMap<(usize, u32), VecDeque<Incoming>>>,
    /// Who has no more requests.
    pub(super) left: RefCell<Vec<bool>>,
    /// When somebody was last heard of.
    pub(super) heard: Cell<Instant>,
    /// What has gone wrong first, here.
    failure: OnceCell<Error>,
}

fn bytes_of(buffer: &Buffer) -> usize {
    buffer.len() * buffer.dtype().size()
}

fn elements(buffer: &Buffer, bytes: usize) -> usize {
    bytes / buffer.dtype().size()
}

/// Under which every request travels.
pub(super) fn request_label() -> Result<Label> {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::U8, 0);
    Ok(Label { tag: Tag::new(REQUESTS, 0, 0, 0)?, fingerprint })
}

/// Room for the longest request.
pub(super) fn mailbox() -> Result<Buffer> {
    Buffer::zeroed(DType::U8, REQUEST_BYTES + INLINE_BYTES)
}

impl Core {
    pub(super) fn new(comm: Communicator, handlers: Arc<Handlers>) -> Self {
        let line = |_| Line { free: (0..SLOTS).collect(), made: 0, started: 0 };
        let lines = RefCell::new((0..comm.size()).map(line).collect());
        let left = RefCell::new(vec![false; comm.size()]);
        let heard = Cell::new(Instant::now());
        let (queues, failure) = (RefCell::default(), OnceCell::new());
        Core { comm, handlers, lines, queues, left, heard, failure }
    }

    /// Ends everything that is under way, here and elsewhere, because of `error`. Returns what has gone wrong first, where
    /// that is why this has.
    pub(super) fn fail(&self, error: Error) -> Error {
        if matches!(error, Error::Poisoned { .. }) {
            return self.failure().unwrap_or(error);
        }
        let _ = self.failure.set(error.clone());
        self.comm.give_up(&error);
        error
    }

    /// What has gone wrong first, here or elsewhere.
    pub(super) fn failure(&self) -> Option<Error> {
        let verdict = self.comm.world().health().verdict()?;
        Some(self.failure.get().cloned().unwrap_or_else(|| Error::PeerFailed {
            culprit: verdict.culprit.clone(),
            cause: verdict.cause.clone(),
            during: During::Nothing,
        }))
    }

    pub(crate) fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// A rank, and where to find it.
    pub(crate) fn peer(&self, rank: usize) -> Peer {
        self.comm.world().health().peers()[rank].clone()
    }

    /// Waits until `ready` has something: a failure here or elsewhere ends the wait.
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

    fn call(&self, series: u32, request: &Request) -> Result<Call<'_>> {
        self.comm.begin(label(series, request)?)
    }

    /// Has another rank, or this one, carry a request out.
    ///
    /// # Errors
    /// As every operation's; the other ranks have been told.
    pub(crate) async fn ask(&self, to: usize, ask: Ask) -> Result<Answer> {
        let outcome =
            if to == self.rank() { self.ask_oneself(ask).await } else { self.converse(to, ask).await };
        outcome.map_err(|error| self.fail(error))
    }

    /// Asks several at once: the answers, in the order of `asks`.
    ///
    /// # Errors
    /// As [`Core::ask`].
    pub(crate) async fn ask_all(&self, asks: Vec<(usize, Ask)>) -> Result<Vec<Answer>> {
        let mut answers: Vec<Option<Answer>> = asks.iter().map(|_| None).collect();
        let ask = |(at, (to, ask))| Box::pin(async move { (at, self.ask(to, ask).await) });
        let mut running: Vec<_> = asks.into_iter().enumerate().map(ask).collect();
        poll_fn(|context| {
            let mut failed = None;
            running.retain_mut(|ask| match ask.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready((at, answer)) => {
                    answer.map_or_else(|error| failed = Some(error), |answer| answers[at] = Some(answer));
                    false
                }
            });
            match failed {
                Some(error) => Poll::Ready(Err(error)),
                None if running.is_empty() => Poll::Ready(Ok(())),
                None => Poll::Pending,
            }
        })
        .await?;
        Ok(answers.into_iter().flatten().collect())
    }

    async fn converse(&self, to: usize, ask: Ask) -> Result<Answer> {
        let mut request = describe(&ask);
        (request.slot, request.number) = self.turn(to, &request).await?;
        let (out, back) = (self.call(PAYLOADS, &request)?, self.call(REPLIES, &request)?);
        // Everything is posted before the first wait.
        let rides = if request.reply_rides() { request.room as usize } else { 0 };
        let head = Buffer::zeroed(DType::U8, REPLY_BYTES + rides)?;
        let reply = back.recv(to, 0, &head, 0..head.len(), Land::AtMost)?;
        let result = match &ask.into {
            Some(into) if !request.reply_rides() => {
                Some(back.recv(to, 1, into, 0..into.len(), Land::AtMost)?)
            }
            _ => None,
        };
        let along = if request.rides() { Payload::copied(ask.payload.as_ref())? } else { Vec::new() };
        let message = Buffer::from_slice(&request.to_bytes(&along))?;
        let first = self.comm.begin(request_label()?)?.send(to, 0, &message, 0..message.len())?;
        if let Some(payload) = ask.payload.filter(|_| !request.rides()) {
            out.send(to, 0, &payload.buffer, 0..payload.len)?.await?;
        }
        first.await?;
        let got = reply.await?;
        let result = match result {
            Some(result) => Some(result.await?.bytes),
            None => None,
        };
        self.lines.borrow_mut()[to].free.push(request.slot);
        self.heard.set(Instant::now());
        let head = head.read(0..got.bytes)?;
        let (head, along) =
            Head::parse(head.bytes()).ok_or_else(|| self.nonsense(to, "a reply that is none"))?;
        self.answer(to, head, along, result, ask.into)
    }

    /// What the parts of a reply make together.
    fn answer(
        &self,
        from: usize,
        head: Head,
        along: &[u8],
        result: Option<usize>,
        into: Option<Arc<Buffer>>,
    ) -> Result<Answer> {
        let landed = result.unwrap_or(along.len());
        if head.bytes != landed as u64 {
            return Err(self.nonsense(from, "a reply of another size than it says"));
        }
        let payload = match into {
            Some(buffer) => {
                if result.is_none() {
                    self.store(from, along, &buffer)?;
                }
                Some(Landed { buffer, bytes: landed })
            }
            None => None,
        };
        Ok(Answer { arguments: head.arguments, payload })
    }

    /// Puts bytes of `from` at the beginning of a buffer.
    fn store(&self, from: usize, bytes: &[u8], buffer: &Buffer) -> Result<()> {
        let whole = bytes.len().is_multiple_of(buffer.dtype().size());
        if !whole || bytes.len() > bytes_of(buffer) {
            return Err(self.nonsense(from, "a payload that does not fit"));
        }
        let mut view = buffer.write(0..elements(buffer, bytes.len()))?;
        view.bytes_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// A rank that speaks another language.
    fn nonsense(&self, from: usize, what: &str) -> Error {
        nonsense(&self.peer(from), what)
    }

    /// The slot and the number of the next request to `to`, when it is its turn.
    async fn turn(&self, to: usize, request: &Request) -> Result<(u16, u64)> {
        let number = {
            let line = &mut self.lines.borrow_mut()[to];
            line.made += 1;
            line.made - 1
        };
        let label = label(REPLIES, &Request { number, ..*request })?;
        let slot = self.until(&label, || {
            let line = &mut self.lines.borrow_mut()[to];
            if line.started != number {
                return Ok(None);
            }
            let slot = line.free.pop();
            line.started += u64::from(slot.is_some());
            Ok(slot)
        });
        Ok((slot.await?, number))
    }

    async fn ask_oneself(&self, ask: Ask) -> Result<Answer> {
        let (request, rank) = (describe(&ask), self.rank());
        let handler = self.handler(rank, &request)?;
        let bytes = Payload::copied(ask.payload.as_ref())?;
        let Reply { arguments, payload } = self.carry_out(&*handler, rank, &request, &bytes).await?;
        let bytes = Payload::copied(payload.as_ref())?;
        let head = Head { arguments, bytes: bytes.len() as u64 };
        self.answer(rank, head, &bytes, None, ask.into)
    }

    fn handler(&self, from: usize, request: &Request) -> Result<Arc<dyn Handler>> {
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        let handler = handlers.get(request.handler as usize).cloned();
        handler.ok_or_else(|| self.nonsense(from, "a request for what was never made here"))
    }

    /// Takes a request that has come: a future that carries it out, unless another does so already.
    pub(super) fn hear(
        self: &Rc<Self>,
        from: usize,
        message: &[u8],
    ) -> Result<Option<impl Future<Output = ()> + use<>>> {
        self.heard.set(Instant::now());
        let (request, payload) =
            Request::parse(message).ok_or_else(|| self.nonsense(from, "a request that is none"))?;
        if request.handler == LEAVE {
            self.left.borrow_mut()[from] = true;
            return Ok(None);
        }
        let key = (from, request.handler);
        let incoming = Incoming { request, payload: payload.to_vec() };
        let mut queues = self.queues.borrow_mut();
        if let Some(queue) = queues.get_mut(&key) {
            queue.push_back(incoming);
            return Ok(None);
        }
        queues.insert(key, VecDeque::from([incoming]));
        Ok(Some(Rc::clone(self).serve(key)))
    }

    /// Carries out what has come of one rank for one handler, until nothing is left.
    async fn serve(self: Rc<Self>, key: (usize, u32)) {
        loop {
            let next = self.queues.borrow_mut().get_mut(&key).and_then(VecDeque::pop_front);
            let Some(incoming) = next else { break };
            if let Err(error) = self.reply(key.0, incoming).await {
                self.fail(error);
            }
        }
        self.queues.borrow_mut().remove(&key);
    }

    async fn reply(&self, from: usize, Incoming { request, payload }: Incoming) -> Result<()> {
        let handler = self.handler(from, &request)?;
        let Reply { arguments, payload } = self.carry_out(&*handler, from, &request, &payload).await?;
        let bytes = payload.as_ref().map_or(0, Payload::bytes);
        if bytes as u64 > request.room {
            let what = format!("a reply of {bytes} bytes has no room at rank {from}");
            return Err(Error::usage(what, "make all ranks of equal kind and size"));
        }
        let mut head = Head { arguments, bytes: bytes as u64 }.to_bytes();
        if request.reply_rides() {
            head.extend(Payload::copied(payload.as_ref())?);
        }
        let (call, head) = (self.call(REPLIES, &request)?, Buffer::from_slice(&head)?);
        let sent = call.send(from, 0, &head, 0..head.len())?;
        if !request.reply_rides() {
            let payload = match payload {
                Some(payload) => payload,
                None => Payload::whole(Arc::new(Buffer::zeroed(DType::U8, 0)?)),
            };
            call.send(from, 1, &payload.buffer, 0..payload.len)?.await?;
        }
        sent.await.map(drop)
    }

    /// Lands a payload, and has the handler do what is asked. `along` is the payload if it rode along.
    async fn carry_out(
        &self,
        handler: &dyn Handler,
        from: usize,
        request: &Request,
        along: &[u8],
    ) -> Result<Reply> {
        let peer = self.peer(from);
        let landed = Landed { buffer: handler.admit(&peer, request)?, bytes: request.bytes as usize };
        if request.bytes > bytes_of(&landed.buffer) as u64 {
            return Err(self.nonsense(from, "a payload that does not fit"));
        }
        if along.len() as u64 == request.bytes {
            self.store(from, along, &landed.buffer)?;
        } else {
            let (call, buffer) = (self.call(PAYLOADS, request)?, &landed.buffer);
            let got = call.recv(from, 0, buffer, 0..buffer.len(), Land::AtMost)?.await?;
            if got.bytes as u64 != request.bytes {
                return Err(self.nonsense(from, "a payload of another size than it said"));
            }
        }
        let label = label(REPLIES, request)?;
        let reply = self.until(&label, || match handler.serve(&peer, request, &landed)? {
            Served::Done(reply) => Ok(Some(reply)),
            Served::Later => Ok(None),
        });
        reply.await
    }

    /// Tells another rank that nothing more comes.
    pub(super) async fn say_goodbye(&self, to: usize) -> Result<()> {
        let fingerprint = request_label()?.fingerprint;
        let arguments = [0; 3];
        let leave = Request {
            handler: LEAVE,
            verb: 0,
            slot: 0,
            number: 0,
            fingerprint,
            bytes: 0,
            room: 0,
            arguments,
        };
        let message = Buffer::from_slice(&leave.to_bytes(&[]))?;
        let sent = self.comm.begin(request_label()?)?.send(to, 0, &message, 0..message.len())?;
        sent.await.map(drop)
    }
}

/// A request without its slot and number.
fn describe(ask: &Ask) -> Request {
    Request {
        handler: ask.handler,
        verb: ask.verb,
        slot: 0,
        number: 0,
        fingerprint: ask.fingerprint,
        bytes: ask.payload.as_ref().map_or(0, Payload::bytes) as u64,
        room: ask.into.as_deref().map_or(0, bytes_of) as u64,
        arguments: ask.arguments,
    }
}

/// A message that belongs to a request.
fn label(series: u32, request: &Request) -> Result<Label> {
    let tag = Tag::new(series, request.slot.into(), request.number, 0)?;
    Ok(Label { tag, fingerprint: request.fingerprint })
}
