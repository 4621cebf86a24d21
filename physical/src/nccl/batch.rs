//! Batches: what is enqueued at a time, as one group, and what the queues of its views wait for.
//!
//! NCCL has a stream of its own. It waits until the queues of the views have come to them; and what is asked of the
//! memory afterwards waits for NCCL. NCCL may take a while to enqueue, until the other ranks have come, too: until then
//! the batch has the views, and nothing else goes to the stream.

use super::collectives::{completed_by, reduced_by};
use super::endpoint::{NcclPath, NcclState};
use super::group::{Group, Member};
use super::library::{Comm, Libnccl, Reduction, Status, data_type};
use super::link::{Flight, Link};
use super::members::Members;
use super::operation::{NcclOperation, NcclStage, NcclWork};
use crate::device::cuda::enqueue::enqueue;
use crate::device::cuda::types::CUstream;
use crate::device::{DeviceQueue, Event, Queue, WaitPlace, at};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::memory::{Buffer, Span, WriteView};
use crate::native::payload;
use crate::runtime;
use crate::transport::{Label, Land, Ticket};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Scratch buffers that are kept.
const MOST_SCRATCH: usize = 8;

/// Work that NCCL is enqueuing.
pub(super) struct Batch {
    works: Vec<BatchWork>,
    link: Arc<Link>,
    flight: Arc<Flight>,
}

/// One operation of a batch.
pub(super) struct BatchWork {
    ticket: Ticket,
    label: Label,
    members: Members,
    call: Call,
    work: NcclWork,
    /// Place of what is received before it is reduced.
    scratch: Option<WriteView>,
}

/// One call of NCCL's.
enum Call {
    Send { from: Span, to: usize },
    Receive { to: Span, from: usize },
    Collective { what: Fingerprint, from: Span, to: Span },
}

impl BatchWork {
    /// Returns the operation's ticket.
    pub(super) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Returns the operation's label.
    pub(super) fn label(&self) -> Label {
        self.label
    }

    /// Returns the ranks that take part.
    pub(super) fn members(&self) -> &Members {
        &self.members
    }
}

impl Batch {
    /// Lets go of a batch whose communicator was ended.
    pub(super) fn let_go(self) {
        self.link.keep(self.spans());
    }

    fn spans(&self) -> Vec<Span> {
        self.works.iter().flat_map(|work| work.call.all().cloned()).collect()
    }
}

/// Returns the queue of a span on a device.
fn owner(span: &Span) -> Result<Queue> {
    let queue = span.queue();
    if queue.is_host() {
        let what = "memory of the host was to travel between GPUs";
        return Err(Error::usage(what, "have the buffers of an operation on the GPU on all ranks"));
    }
    Ok(queue)
}

/// Lets NCCL's stream wait for a queue at a place.
///
/// # Errors
/// The failure of the queue's work, if one is known: nobody is to get what came of that.
fn wait_for(stream: &Arc<dyn DeviceQueue>, queue: &Arc<dyn DeviceQueue>, place: WaitPlace) -> Result<()> {
    let event = queue.record();
    at(place, || stream.wait(&event));
    event.failure().map_or(Ok(()), |failure| Err(failure.into_error(queue.device())))
}

impl NcclPath {
    /// Goes on with the batch that NCCL enqueues, and hands it the next. Returns true if there is one.
    pub(super) fn enqueue(&self, state: &mut NcclState) -> Result<bool> {
        let mut moved = false;
        loop {
            if !state
                .batch
                .as_ref()
                .map_or(&self.link, |batch| &batch.link)
                .is_free("let NCCL communicate")?
            {
                if state.batch.is_some() {
                    // NCCL is at it on a thread of its own.
                    runtime::yield_now();
                }
                return Ok(moved || state.batch.is_some());
            }
            if let Some(batch) = state.batch.take() {
                moved = true;
                let done = self.complete(state, batch)?;
                self.order.done(self.owner, Some(done));
            }
            let mut works = match self.go_on_joining(state)? {
                Some(work) => vec![work],
                None if let Some(joining) = &state.joining => return Ok(moved || joining.is_at_work()),
                None => self.take_turn(state)?,
            };
            let Some(first) = works.first() else { return Ok(moved) };
            let label = first.label;
            let Some(link) = self.link_of(&state.groups, &first.members) else {
                // A collective, which is alone.
                state.joining = works.pop().map(|work| self.begin_to_join(state, work)).transpose()?;
                continue;
            };
            let batch = self.begin_batch(works, label, link)?;
            // Even where NCCL refuses a part of it, it may be at the others.
            self.hand_over(state.batch.insert(batch))?;
        }
    }

    /// Takes the operations whose turn it is, as far as they go as one [group](super::group).
    fn take_turn(&self, state: &mut NcclState) -> Result<Vec<BatchWork>> {
        let mut connected = std::mem::take(&mut state.connected);
        let rank = self.host.rank();
        let mut group = Group::new(&mut connected, self.host.size());
        let mut next =
            || self.order.next(self.owner, |ticket| group.add(Member::of(state.operation(ticket), rank)));
        let tickets: Vec<Ticket> = std::iter::from_fn(&mut next).collect();
        state.connected = connected;
        let works = tickets.into_iter().map(|ticket| self.work(state, ticket));
        works.filter_map(Result::transpose).collect()
    }

    /// Returns what is to be called for an operation; `None` if it has been given up.
    fn work(&self, state: &mut NcclState, ticket: Ticket) -> Result<Option<BatchWork>> {
        let Some(operation) = state.operation(ticket) else { return Ok(None) };
        let NcclOperation { label, got, ref members, .. } = *operation;
        let members = members.clone();
        let Some(work) = operation.work.take() else { return Ok(None) };
        let mut scratch = None;
        let call = match &work {
            NcclWork::Send { to, view } => Call::Send { from: view.span(), to: *to },
            NcclWork::Receive { view, land: Land::Reduce(_) } => {
                let place = beside(&mut state.scratch, view)?;
                let to = place.span();
                scratch = Some(place);
                Call::Receive { to, from: got.peer }
            }
            NcclWork::Receive { view, .. } => {
                Call::Receive { to: view.span().first(got.bytes), from: got.peer }
            }
            NcclWork::Collective { input, output } => {
                let to = output.span();
                let from = input.as_ref().map_or_else(|| to.clone(), |input| input.span());
                Call::Collective { what: label.fingerprint, from, to }
            }
        };
        Ok(Some(BatchWork { ticket, label, members, call, work, scratch }))
    }

    /// Lets NCCL's stream wait for the work of the views' queues.
    fn begin_batch(&self, works: Vec<BatchWork>, label: Label, link: Arc<Link>) -> Result<Batch> {
        let stream = self.stream()?;
        for work in &works {
            let (reads, writes) = work.call.spans();
            for span in reads.into_iter().chain(writes) {
                let own = owner(span)?;
                if own.name() != self.queue.name() {
                    let what = format!("memory of {} was to travel from {}", own.name(), self.queue.name());
                    return Err(Error::usage(what, "have all buffers of a communicator on one GPU"));
                }
            }
            if let Some((own, order)) = writes.and_then(Span::place) {
                order.before_write(&**own, WaitPlace::NcclBeforeWrite);
                if let Some((reader, _)) =
                    reads.and_then(Span::place).filter(|(from, _)| !Arc::ptr_eq(from, own))
                {
                    at(WaitPlace::NcclInput, || own.wait_to_read(&reader.record()));
                }
                wait_for(stream, own, WaitPlace::NcclOutput)?;
            } else if let Some((own, _)) = reads.and_then(Span::place) {
                wait_for(stream, own, WaitPlace::NcclSend)?;
            }
        }
        if let Some(last) = self.order.last_of_others(self.owner) {
            at(WaitPlace::NcclTurns, || stream.wait(&last));
        }
        // From now on: NCCL enqueues on a thread of its own, and the device is not idle meanwhile.
        let flight = link.watch(label, stream.record())?;
        Ok(Batch { works, link, flight })
    }

    /// Lets NCCL enqueue a batch.
    fn hand_over(&self, batch: &Batch) -> Result<()> {
        enqueue(&self.queue, Vec::new(), Vec::new(), (), |work| {
            batch.link.group("let NCCL communicate", |nccl, comm| {
                let mut calls = batch.works.iter().map(|one| one.call.enqueue(nccl, comm, work.stream()));
                calls.find(|status| !status.is_well()).map_or(Ok(()), Err)
            })
        })
    }

    /// Lets the queues of the views go on behind what NCCL has enqueued, and completes what it has not done itself.
    fn complete(&self, state: &mut NcclState, batch: Batch) -> Result<Arc<dyn Event>> {
        let spans = batch.spans();
        let Batch { works, flight, .. } = batch;
        enqueue(&self.queue, Vec::new(), Vec::new(), spans, |_| Ok(()))?;
        let done = flight.end()?;
        works.into_iter().try_for_each(|work| self.land(state, work, &done))?;
        Ok(done)
    }

    /// Returns the stream on which NCCL enqueues.
    pub(super) fn stream(&self) -> Result<&Arc<dyn DeviceQueue>> {
        let missing = || Error::usage("NCCL has no queue", "report this defect of the path");
        self.queue.device().ok_or_else(missing)
    }

    /// Ends one operation of a batch that is on the stream.
    fn land(&self, state: &mut NcclState, work: BatchWork, done: &Arc<dyn Event>) -> Result<()> {
        let BatchWork { ticket, call, work, scratch, label, members } = work;
        let (reads, writes) = call.spans();
        if let Some((own, order)) = writes.and_then(Span::place) {
            at(WaitPlace::NcclDone, || own.wait_to_read(done));
            order.after_write();
        }
        if let Some((own, order)) = reads.and_then(Span::place) {
            order.after_read(own, self.stream()?);
        }
        self.count(&call, &label, &members);
        match (work, scratch) {
            (NcclWork::Receive { mut view, land: Land::Reduce(op) }, Some(scratch)) => {
                view.reduce(op, &scratch.into_read())?;
            }
            (NcclWork::Collective { mut output, .. }, _) => {
                if let Some(factor) = completed_by(&label.fingerprint, members.count()) {
                    output.scale(factor)?;
                }
            }
            _ => (),
        }
        if let Some(operation) = state.operation(ticket) {
            operation.stage = NcclStage::Enqueued;
        }
        Ok(())
    }

    /// Counts what this rank sends.
    fn count(&self, call: &Call, label: &Label, members: &Members) {
        match call {
            Call::Send { from, .. } => self.tally.notified(from.byte_len(), from.byte_len()),
            Call::Receive { .. } => (),
            Call::Collective { .. } => {
                let bytes = payload(&label.fingerprint, members.count(), members.place());
                self.tally.notified(bytes, bytes);
            }
        }
    }
}

impl Call {
    /// Returns what it reads and what it writes, where that differs.
    fn spans(&self) -> (Option<&Span>, Option<&Span>) {
        match self {
            Call::Send { from, .. } => (Some(from), None),
            Call::Receive { to, .. } => (None, Some(to)),
            Call::Collective { from, to, .. } => (Some(from), Some(to)),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Span> {
        let (reads, writes) = self.spans();
        reads.into_iter().chain(writes)
    }

    /// Gives the operation to NCCL, within a group.
    fn enqueue(&self, nccl: &Libnccl, comm: Comm, stream: CUstream) -> Status {
        let at = |span: &Span| span.address().cast::<c_void>();
        let bytes = data_type(DType::U8);
        // SAFETY: the memory is the device's, of the lengths that are told, and the batch and then the stream keep it
        // until the device is done with it. Queues of others wait meanwhile.
        unsafe {
            match self {
                Call::Send { from, .. } | Call::Receive { to: from, .. } if from.is_empty() => {
                    Status::SUCCESS
                }
                Call::Send { from, to } => {
                    (nccl.ncclSend)(at(from), from.byte_len(), bytes, *to as c_int, comm, stream)
                }
                Call::Receive { to, from } => {
                    (nccl.ncclRecv)(at(to), to.byte_len(), bytes, *from as c_int, comm, stream)
                }
                Call::Collective { what, from, to } => collective(what, (from, to), nccl, comm, stream),
            }
        }
    }
}

/// Calls a collective of NCCL's.
///
/// # Safety
/// The memory lives until the device is done with it.
unsafe fn collective(
    what: &Fingerprint,
    (from, to): (&Span, &Span),
    nccl: &Libnccl,
    comm: Comm,
    stream: CUstream,
) -> Status {
    let input = from.address().cast::<c_void>();
    let output = to.address().cast::<c_void>();
    let bytes = data_type(DType::U8);
    let dtype = data_type(what.dtype);
    let op = reduced_by(what).unwrap_or(Reduction::SUM);
    // SAFETY: as the caller says; ranks have agreed on the lengths.
    unsafe {
        match what.operation {
            _ if from.is_empty() || to.is_empty() => Status::SUCCESS,
            OperationKind::AllReduce => {
                (nccl.ncclAllReduce)(input, output, to.len(), dtype, op, comm, stream)
            }
            OperationKind::ReduceScatter => {
                (nccl.ncclReduceScatter)(input, output, to.len(), dtype, op, comm, stream)
            }
            OperationKind::AllGather => {
                (nccl.ncclAllGather)(input, output, from.byte_len(), bytes, comm, stream)
            }
            _ => {
                let root = what.root.unwrap_or(0) as c_int;
                (nccl.ncclBroadcast)(input, output, to.byte_len(), bytes, root, comm, stream)
            }
        }
    }
}

/// Returns memory on the queue of a view, of its type and length.
fn beside(kept: &mut Vec<Buffer>, view: &WriteView) -> Result<WriteView> {
    let queue = view.queue();
    let free = |buffer: &Buffer| {
        let alike = buffer.dtype() == view.dtype() && buffer.queue() == queue && buffer.len() >= view.len();
        buffer.write(0..view.len()).ok().filter(|_| alike)
    };
    if let Some(place) = kept.iter().find_map(free) {
        return Ok(place);
    }
    let buffer = Buffer::zeroed_on(&queue, view.dtype(), view.len())?;
    let place = buffer.write_all()?;
    kept.drain(..(kept.len() + 1).saturating_sub(MOST_SCRATCH));
    kept.push(buffer);
    Ok(place)
}
