//! Messages on the device: the sender's stream copies them to lent memory, from which the receiver's takes them.
//!
//! The sender's stream does not wait. The receiver's stream waits for a copy that is already enqueued, and so ends whatever the
//! hosts do. Memory is used again once the sender's host sees that the message was taken.

use crate::device::cuda::enqueue::{PathWork, address, enqueue};
use crate::device::{Queue, go_on};
use crate::device_paths::ipc::collectives::{EndpointReach, copy};
use crate::device_paths::ipc::contribution::Contribution;
use crate::device_paths::ipc::memory::RegisteredMemory;
use crate::device_paths::ipc::sync_pages::has_come;
use crate::device_paths::ipc::watch::{AwaitedWords, OperationInFlight};
use crate::error::Result;
use crate::memory::{ReadView, Span, WriteView};
use crate::runtime;
use crate::transport::{Label, ReceiveMode};
use crate::waiting::lock::lock;
use crate::waiting::stopwatch::Stopwatch;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest time that an endpoint waits for its receivers when it closes.
const FAREWELL: Duration = Duration::from_secs(5);

/// Time between two looks meanwhile.
const TICK: Duration = Duration::from_millis(1);

/// Messages of endpoints that have closed, which their receivers may still take.
static LEFT: Mutex<Vec<(Arc<EndpointReach>, SentMessage)>> = Mutex::new(Vec::new());

/// A message that its receiver may not have taken.
struct SentMessage {
    to: usize,
    /// Number of the message among all to its receiver.
    number: u32,
    /// Memory in which it lies.
    _bucket: Arc<RegisteredMemory>,
}

impl SentMessage {
    fn is_taken(&self, reach: &EndpointReach) -> bool {
        has_come(reach.words.taken(self.to), self.number)
    }
}

/// Messages of one endpoint that lie ready for their receivers.
pub(crate) struct MessageOutbox {
    messages: Vec<SentMessage>,
    /// Number of messages so far, by receiver.
    numbers: Vec<u32>,
}

/// Position of a message among all to its receiver, and in memory.
pub(crate) struct Position {
    pub(crate) number: u32,
    pub(crate) notice: Contribution,
}

impl MessageOutbox {
    /// Creates the outbox of a rank, in a world of this size.
    pub(crate) fn new(ranks: usize) -> Self {
        MessageOutbox { messages: Vec::new(), numbers: vec![0; ranks] }
    }

    /// Enqueues the copy of a message for a rank.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if the view is not of this endpoint's GPU;
    /// [`Error::System`](crate::Error::System) if memory runs out, or the driver refuses.
    pub(crate) fn put(
        &mut self,
        reach: &Arc<EndpointReach>,
        label: &Label,
        view: &ReadView,
        to: usize,
    ) -> Result<Position> {
        self.messages.retain(|message| !message.is_taken(reach));
        let queue = view.queue();
        let bytes = view.byte_len();
        let bucket = Arc::new(reach.exports.take(reach.queue(&queue, label)?, bytes)?);
        let notice = bucket.notice(0);
        let number = self.numbers[to].wrapping_add(1);
        self.numbers[to] = number;
        let from = view.span();
        let held = (Arc::clone(reach), Arc::clone(&bucket));
        enqueue(&queue, vec![from.clone()], Vec::new(), held, |work| {
            copy(work, address(&from), notice.address, bytes)?;
            reach.words.tell_sent(work, to, number)
        })?;
        self.messages.push(SentMessage { to, number, _bucket: bucket });
        Ok(Position { number, notice })
    }

    /// Waits until all messages are taken, at most a few seconds, and keeps those that are not.
    pub(crate) fn close(&mut self, reach: &Arc<EndpointReach>) {
        let mut waited = Stopwatch::start();
        loop {
            self.messages.retain(|message| !message.is_taken(reach));
            if self.messages.is_empty() || reach.health.verdict().is_some() || waited.elapsed() > FAREWELL {
                break;
            }
            go_on(None);
            runtime::sleep(TICK);
        }
        lock(&LEFT).extend(self.messages.drain(..).map(|message| (Arc::clone(reach), message)));
    }
}

/// Releases the messages of closed endpoints that were taken.
pub(crate) fn clear_away() {
    let taken: Vec<_> = lock(&LEFT).extract_if(.., |(reach, message)| message.is_taken(reach)).collect();
    drop(taken);
}

/// A message that lies ready for this rank.
pub(crate) struct IncomingMessage {
    pub(crate) from: usize,
    pub(crate) bytes: usize,
    pub(crate) position: Position,
}

/// Makes a queue take a message, unless its receive was cancelled.
///
/// # Errors
/// [`Error::Usage`](crate::Error::Usage) if the message is gone; [`Error::System`](crate::Error::System) if the driver
/// refuses.
pub(crate) fn take(
    reach: &Arc<EndpointReach>,
    label: Label,
    queue: &Queue,
    message: &IncomingMessage,
    to: Option<(WriteView, ReceiveMode)>,
) -> Result<()> {
    let IncomingMessage { from, bytes, position } = message;
    let mut held = Vec::new();
    let source = reach.find(*from, &position.notice, *bytes, &mut held)?;
    let to = to.map(|(view, land)| (view.span().first(*bytes), land));
    let writes: Vec<Span> = to.iter().map(|(span, _)| span.clone()).collect();
    let taken = reach.taken.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    reach.awaited[*from].store(position.number, Ordering::Relaxed);
    let mut waits = false;
    let enqueued = enqueue(queue, Vec::new(), writes, (Arc::clone(reach), held), |work| {
        reach.words.await_sent(work, *from, position.number)?;
        waits = true;
        let stored = to.iter().try_for_each(|(span, land)| store(work, source, span, *land));
        // If the driver has refused the copy, the stream still waits, and the sender still needs the memory back.
        reach.words.tell_taken(work, *from, position.number)?;
        reach.words.note_taken(work, taken)?;
        stored
    });
    if waits {
        let awaited = AwaitedWords::Message { from: *from, number: position.number, taken };
        reach.queue(queue, &label)?.watch(Arc::new(OperationInFlight::new(reach, queue, label, awaited)));
    }
    enqueued
}

/// Enqueues the effect of a message on the memory of its receiver.
fn store(work: &mut PathWork<'_>, from: u64, to: &Span, land: ReceiveMode) -> Result<()> {
    match land {
        ReceiveMode::Reduce(op) => work.reduce(op, from, to),
        ReceiveMode::Copy | ReceiveMode::AtMost => copy(work, from, address(to), to.byte_len()),
    }
}
