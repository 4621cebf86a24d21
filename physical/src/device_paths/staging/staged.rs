//! Staged operations: the copies down before they are posted, and the copies up at the end.

use crate::device::codec::CodecError;
use crate::device::{Event, Failure, Queue};
use crate::error::{Error, ErrorContext, Result};
use crate::memory::{Buffer, ReadView, WriteView};
use crate::transport::tag::Tag;
use crate::transport::tickets::Tickets;
use crate::transport::{Bell, Label, ReceiveMode, Received, Source, Ticket, Transport};
use std::sync::Arc;
use std::task::{Context, Poll};

/// One staged operation.
pub(super) struct Staged {
    label: Label,
    /// Copies down that must be complete before it is posted.
    copies: Vec<CopyDown>,
    step: StagedStep,
    arriving: Option<Arriving>,
    /// The device views of the sent memory, which is not written before the operation has ended.
    _departing: Option<ReadView>,
}

/// A running copy down.
struct CopyDown {
    /// Carries the failure, if the copied memory depends on one.
    event: Arc<dyn Event>,
    queue: Queue,
    /// True if the end of the copy rings the endpoint's bell.
    rings: bool,
}

enum StagedStep {
    /// A message to this rank, to be posted.
    Send(usize, HostSource),
    /// A collective of the backend among these ranks, to be posted; the output is `None` here if it goes to a device.
    Native(Arc<[usize]>, Option<HostSource>, Option<WriteView>),
    /// Running, under this ticket of the transport.
    Posted(Ticket),
    /// Not even posted.
    Failed,
}

/// Place of an operation in the posting order of its lane. A peer would interpret a later one as proof that the
/// earlier one never comes.
#[derive(Clone, Copy)]
pub(super) struct PostingTurn {
    lane: Tag,
    /// The destination of a message; `None` for a collective, in which all take part.
    to: Option<usize>,
}

impl PostingTurn {
    /// Returns the turn of a message to a rank, or of a collective of the backend.
    pub(super) fn of(label: &Label, to: Option<usize>) -> Self {
        PostingTurn { lane: label.tag.series(), to }
    }

    /// Returns true if `later` must not be posted before this.
    fn comes_before(&self, later: &PostingTurn) -> bool {
        let share_a_rank = self.to == later.to || self.to.is_none() || later.to.is_none();
        self.lane == later.lane && share_a_rank
    }
}

/// Host memory for the transport to read.
enum HostSource {
    View(ReadView),
    /// Complete when the copies are.
    Copy(Buffer),
}

/// A receive into a device's view.
struct Arriving {
    view: WriteView,
    land: ReceiveMode,
    /// Memory of the host into which the transport receives.
    copy: Buffer,
}

impl HostSource {
    fn open(self) -> Result<ReadView> {
        match self {
            HostSource::View(view) => Ok(view),
            HostSource::Copy(copy) => copy.read_all(),
        }
    }
}

impl Staged {
    /// Begins to copy down a message.
    pub(super) fn send(to: usize, label: Label, view: ReadView) -> Result<Self> {
        let mut copies = Vec::new();
        let (outgoing, departing) = outgoing(view, &mut copies)?;
        Ok(Staged {
            label,
            copies,
            step: StagedStep::Send(to, outgoing),
            arriving: None,
            _departing: departing,
        })
    }

    /// Posts a receive into host memory.
    pub(super) fn recv(
        from: Source,
        label: Label,
        view: WriteView,
        land: ReceiveMode,
        transport: &dyn Transport,
    ) -> Result<Self> {
        let copy = view.queue().host_memory(view.dtype(), view.len())?;
        let stored = if land == ReceiveMode::AtMost { ReceiveMode::AtMost } else { ReceiveMode::Copy };
        let step = StagedStep::Posted(transport.post_recv(from, label, copy.write_all()?, stored));
        let arriving = Some(Arriving { view, land, copy });
        Ok(Staged { label, copies: Vec::new(), step, arriving, _departing: None })
    }

    /// Begins to copy down the inputs of a collective of the backend.
    pub(super) fn native(
        label: Label,
        members: &Arc<[usize]>,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Result<Self> {
        let members = Arc::clone(members);
        let in_place = input.is_none();
        let mut copies = Vec::new();
        let input = input.map(|view| outgoing(view, &mut copies)).transpose()?;
        let (input, departing) = input.map_or((None, None), |(input, departing)| (Some(input), departing));
        if output.is_on_host() {
            let step = StagedStep::Native(members, input, Some(output));
            return Ok(Staged { label, copies, step, arriving: None, _departing: departing });
        }
        let copy = match in_place {
            true => copied(output.copy_down()?, output.queue(), &mut copies),
            false => None,
        };
        let fresh = || output.queue().host_memory(output.dtype(), output.len());
        let copy = copy.map_or_else(fresh, Ok)?;
        let arriving = Some(Arriving { view: output, land: ReceiveMode::Copy, copy });
        Ok(Staged {
            label,
            copies,
            step: StagedStep::Native(members, input, None),
            arriving,
            _departing: departing,
        })
    }

    /// Returns the turn for which this waits, until it is posted.
    fn turn(&self) -> Option<PostingTurn> {
        match self.step {
            StagedStep::Send(to, _) => Some(PostingTurn::of(&self.label, Some(to))),
            StagedStep::Native(..) => Some(PostingTurn::of(&self.label, None)),
            StagedStep::Posted(_) | StagedStep::Failed => None,
        }
    }

    /// Makes the end of every copy ring the bell.
    fn ring(&mut self, bell: &Arc<dyn Bell>) {
        for copy in &mut self.copies {
            if !std::mem::replace(&mut copy.rings, true) {
                copy.event.ring(Arc::clone(bell));
            }
        }
    }

    fn is_copied(&self) -> bool {
        self.copies.iter().all(|copy| copy.event.has_happened() && copy.event.is_settled())
    }

    fn post(&mut self, transport: &dyn Transport) -> Result<()> {
        for copy in self.copies.drain(..) {
            let failure = copy.event.failure();
            failure.map_or(Ok(()), |failure| Err(error(failure, &copy.queue, transport)))?;
        }
        self.step = match std::mem::replace(&mut self.step, StagedStep::Failed) {
            StagedStep::Send(to, message) => {
                StagedStep::Posted(transport.post_send(to, self.label, message.open()?))
            }
            StagedStep::Native(members, input, output) => {
                let input = input.map(HostSource::open).transpose()?;
                let copy = || self.arriving.as_ref().map(|arriving| arriving.copy.write_all());
                let output = output.map(Ok).or_else(copy).transpose()?;
                let Some((native, output)) = transport.native().zip(output) else {
                    let what = format!("{} has no native collectives", transport.kind());
                    return Err(Error::usage(what, "post only offered collectives"));
                };
                StagedStep::Posted(native.post(self.label, &members, input, output))
            }
            step @ (StagedStep::Posted(_) | StagedStep::Failed) => step,
        };
        Ok(())
    }

    /// Passes the received data to the queue of the view.
    fn land(self, got: Received, scratch: &mut StagingScratch) -> Result<Received> {
        let Some(Arriving { mut view, land, copy }) = self.arriving else { return Ok(got) };
        let copy = copy.read_all()?;
        match land {
            ReceiveMode::Copy => view.copy_up(copy),
            ReceiveMode::AtMost => view.copy_up(copy.into_first(got.bytes)),
            ReceiveMode::Reduce(op) => {
                let scratch = scratch.same_device(&view)?;
                view.reduce_up(op, copy, scratch)?;
            }
        }
        Ok(got)
    }
}

/// Device memory for data that is copied up before it is reduced: one for each queue and type, since a queue works in
/// order.
#[derive(Default)]
struct StagingScratch(Vec<Buffer>);

impl StagingScratch {
    /// Number of queues and types with kept memory; beyond that, the oldest is dropped.
    const MOST: usize = 16;

    /// Returns at least as many elements as `view` has, on its queue.
    fn same_device(&mut self, view: &WriteView) -> Result<&Buffer> {
        let queue = view.queue();
        let alike = |buffer: &Buffer| buffer.dtype() == view.dtype() && buffer.queue() == queue;
        let place = match self.0.iter().position(alike) {
            Some(place) => place,
            None => {
                self.0.drain(..(self.0.len() + 1).saturating_sub(Self::MOST));
                self.0.push(Buffer::zeroed_on(&queue, view.dtype(), view.len())?);
                self.0.len() - 1
            }
        };
        if self.0[place].len() < view.len() {
            self.0[place] = Buffer::zeroed_on(&queue, view.dtype(), view.len())?;
        }
        Ok(&self.0[place])
    }
}

/// Returns a view that a transport can read instead of the given one, and the original if they differ.
fn outgoing(view: ReadView, copies: &mut Vec<CopyDown>) -> Result<(HostSource, Option<ReadView>)> {
    Ok(match copied(view.copy_down()?, view.queue(), copies) {
        None => (HostSource::View(view), None),
        Some(copy) => (HostSource::Copy(copy), Some(view)),
    })
}

/// Notes a copy that has begun.
fn copied(
    begun: Option<(Buffer, Arc<dyn Event>)>,
    queue: Queue,
    copies: &mut Vec<CopyDown>,
) -> Option<Buffer> {
    let (copy, event) = begun?;
    copies.push(CopyDown { event, queue, rings: false });
    Some(copy)
}

/// Returns the error of this rank for a queue that failed before a message could be copied. It names no operation,
/// since the failed work may belong to a different one.
fn error(failure: Failure, queue: &Queue, transport: &dyn Transport) -> Error {
    match failure {
        Failure::Refused { refusal: CodecError::NotFinite { index, value }, .. } => {
            let place = transport.health().peers()[transport.rank()].clone();
            Error::NotFinite { place, tensor: None, index, value, context: ErrorContext::Nothing }
        }
        failure => failure.into_error(queue.name()),
    }
}

/// The staged operations of one endpoint, in the order in which they were begun.
#[derive(Default)]
pub(super) struct StagedOperations {
    tickets: Tickets,
    operations: Vec<(Ticket, Staged)>,
    /// The first failure to post that no operation has failed for.
    failure: Option<Error>,
    scratch: StagingScratch,
}

impl StagedOperations {
    /// Takes an operation, or the reason why it failed immediately.
    pub(super) fn open(&mut self, staged: Result<Staged>) -> Ticket {
        let ticket = self.tickets.open();
        match staged {
            Ok(staged) => self.operations.push((ticket, staged)),
            Err(error) => self.fail(ticket, error),
        }
        ticket
    }

    fn fail(&mut self, ticket: Ticket, error: Error) {
        self.failure.get_or_insert_with(|| error.clone());
        self.tickets.finish(ticket, Err(error));
    }

    /// Returns true if an operation could not be posted, and none has failed for that.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Takes the failure with which an operation must fail.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Returns the number of operations that wait for a copy.
    pub(super) fn waiting(&self) -> usize {
        self.operations.iter().filter(|(_, staged)| staged.turn().is_some()).count()
    }

    /// Returns true if an operation that is still being copied precedes `turn`.
    pub(super) fn comes_before(&self, turn: &PostingTurn) -> bool {
        self.operations.iter().filter_map(|(_, staged)| staged.turn()).any(|first| first.comes_before(turn))
    }

    /// Returns true if a part of this operation waits for a copy.
    pub(super) fn is_copying(&self, label: &Label) -> bool {
        let mut copying = self.operations.iter().filter(|(_, staged)| staged.turn().is_some());
        copying.any(|(_, staged)| staged.label.whole() == label.whole())
    }

    /// Makes every running copy ring the bell at its end.
    pub(super) fn ring(&mut self, bell: &Arc<dyn Bell>) {
        self.operations.iter_mut().for_each(|(_, staged)| staged.ring(bell));
    }

    /// Posts copied messages; operations of one lane in order. Returns true if there were any.
    pub(super) fn advance(&mut self, transport: &dyn Transport) -> bool {
        let mut copying: Vec<PostingTurn> = Vec::new();
        let mut moved = false;
        let mut failed = Vec::new();
        for (ticket, staged) in &mut self.operations {
            let Some(turn) = staged.turn() else { continue };
            if copying.iter().any(|first| first.comes_before(&turn)) || !staged.is_copied() {
                copying.push(turn);
                continue;
            }
            moved = true;
            if let Err(error) = staged.post(transport) {
                staged.step = StagedStep::Failed;
                failed.push((*ticket, error));
            }
        }
        failed.into_iter().for_each(|(ticket, error)| self.fail(ticket, error));
        moved
    }

    /// Returns the transport's ticket of an operation that has been posted.
    pub(super) fn posted(&self, ticket: Ticket) -> Option<Ticket> {
        self.operations.iter().find(|(own, _)| *own == ticket).and_then(|(_, staged)| match staged.step {
            StagedStep::Posted(posted) => Some(posted),
            StagedStep::Send(..) | StagedStep::Native(..) | StagedStep::Failed => None,
        })
    }

    pub(super) fn poll(
        &mut self,
        ticket: Ticket,
        transport: &dyn Transport,
        context: &mut Context<'_>,
    ) -> Poll<Result<Received>> {
        if let Poll::Ready(failed) = self.tickets.poll(ticket) {
            self.failure = None;
            self.remove(ticket);
            return Poll::Ready(failed);
        }
        let Some(posted) = self.posted(ticket) else { return Poll::Pending };
        let Poll::Ready(outcome) = transport.poll(posted, context) else { return Poll::Pending };
        self.tickets.close(ticket);
        let Some(staged) = self.remove(ticket) else { return Poll::Ready(outcome) };
        Poll::Ready(outcome.and_then(|got| staged.land(got, &mut self.scratch)))
    }

    pub(super) fn cancel(&mut self, ticket: Ticket, transport: &dyn Transport) {
        if let Some(posted) = self.posted(ticket) {
            transport.cancel(posted);
        }
        self.tickets.close(ticket);
        self.remove(ticket);
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Staged> {
        let place = self.operations.iter().position(|(own, _)| *own == ticket)?;
        Some(self.operations.remove(place).1)
    }
}
