//! Arithmetic on views of which at least one is not in host memory: the waits of a queue, and the copies of operands.
//!
//! An operand on the same device is read in place. Any other operand is first copied to that device, through the
//! host; that is slow, and rarely necessary.

use crate::device::codec::{Codec, CodecError};
use crate::device::queue::host_memory;
use crate::device::queue::sync_point::SyncPoint;
use crate::device::queue::waiting::synchronize;
use crate::device::{DeviceQueue, Event, Kernel, host};
use crate::error::{Error, Result};
use crate::memory::dtype::{DType, ReduceOp};
use crate::memory::{Buffer, ReadView, Span, WriteView};
use std::sync::{Arc, Once};

pub(crate) fn clear(to: &WriteView) {
    enqueue(&to.span(), &[], |queue, to| queue.clear(to));
}

pub(crate) fn copy(from: &ReadView, to: &mut WriteView) -> Result<()> {
    if to.is_on_host() {
        return to.copy_from(&brought_down(from)?);
    }
    if from.is_on_host() {
        to.copy_up(snapshot(from, to.span().queue().device())?);
        return Ok(());
    }
    with(from, to, |queue, from, to| queue.copy(from, to))
}

pub(crate) fn reduce(op: ReduceOp, from: &ReadView, to: &mut WriteView) -> Result<()> {
    if to.is_on_host() {
        return to.reduce(op, &brought_down(from)?);
    }
    with(from, to, |queue, from, to| queue.reduce(op, from, to))
}

pub(crate) fn scale(factor: f64, to: &WriteView) {
    enqueue(&to.span(), &[], |queue, to| queue.scale(factor, to));
}

pub(crate) fn add_scaled(weight: f64, from: &ReadView, to: &mut WriteView) -> Result<()> {
    if to.is_on_host() {
        return to.add_scaled(weight, &brought_down(from)?);
    }
    with(from, to, |queue, from, to| queue.add_scaled(weight, from, to))
}

pub(crate) fn weighted_sum(terms: &[(f64, Option<&ReadView>)], to: &mut WriteView) -> Result<()> {
    if to.is_on_host() {
        let views = terms.iter().map(|(_, term)| term.map(brought_down).transpose());
        let views = views.collect::<Result<Vec<_>>>()?;
        let terms: Vec<_> =
            terms.iter().zip(&views).map(|((weight, _), view)| (*weight, view.as_ref())).collect();
        return to.weighted_sum(&terms);
    }
    let to = to.span();
    let spans = terms.iter().map(|(weight, term)| {
        let span = term.map(|term| readable_span(term, &to)).transpose()?;
        Ok((*weight, span))
    });
    let terms = spans.collect::<Result<Vec<_>>>()?;
    let operands: Vec<Span> = terms.iter().filter_map(|(_, term)| term.clone()).collect();
    enqueue(&to, &operands, |queue, to| queue.weighted_sum(terms, to));
    Ok(())
}

pub(crate) fn encode(
    codec: &dyn Codec,
    from: &ReadView,
    to: &mut WriteView,
    seed: u64,
) -> Result<Result<usize, CodecError>> {
    let mut enqueued = false;
    if (codec.has_fixed_size() || !to.queue().has_content()) && !to.is_on_host() {
        with(from, to, |queue, from, to| enqueued = queue.encode(codec, from, to, seed))?;
    }
    let largest = codec.encoded_len(from.len());
    if enqueued {
        return Ok(Ok(largest));
    }
    let from = brought_down(from)?;
    if let Some(to) = to.host_bytes_mut() {
        return Ok(host::encode(codec, from.bytes(), to, seed));
    }
    let message = to.queue().host_memory(DType::U8, largest)?;
    let size = host::encode(codec, from.bytes(), message.write_all()?.bytes_mut(), seed);
    if let Ok(size) = size {
        to.copy_up(message.read(0..size)?);
    }
    Ok(size)
}

pub(crate) fn decode(
    codec: &dyn Codec,
    from: &ReadView,
    weight: Option<f32>,
    to: &mut WriteView,
) -> Result<Result<(), CodecError>> {
    if to.is_on_host() {
        return to.decode(codec, &brought_down(from)?, weight);
    }
    let mut enqueued = false;
    with(from, to, |queue, from, to| enqueued = queue.decode(codec, from, weight, to))?;
    if enqueued {
        return Ok(Ok(()));
    }
    let from = brought_down(from)?;
    let mut numbers = down(&to.span())?;
    let outcome = host::decode(codec, from.bytes(), weight, numbers.bytes_mut());
    to.copy_up(numbers.into_read());
    Ok(outcome)
}

/// Runs a kernel of which at least one operand is not in host memory.
pub(crate) fn apply(kernel: &Arc<dyn Kernel>, reads: &[ReadView], writes: &mut [WriteView]) -> Result<()> {
    let spans: Vec<Span> = writes.iter().map(WriteView::span).collect();
    if let Some(first) = spans.first()
        && spans.iter().all(|span| span.queue() == first.queue())
        && let queue = first.queue()
        && let Some(queue) = queue.device()
        && (reads.iter().all(|view| is_readable(view, first)) || queue.runs(&**kernel))
    {
        let operands = reads.iter().map(|view| readable_span(view, first)).collect::<Result<Vec<_>>>()?;
        let mut enqueued = false;
        enqueue_all(&spans, &operands, |queue| {
            enqueued = queue.run(kernel, operands.clone(), spans.clone());
        });
        if enqueued {
            return Ok(());
        }
    }
    on_copies(&**kernel, reads, writes)
}

/// Runs a kernel on copies of its operands in host memory, and copies the written ones back.
fn on_copies(kernel: &dyn Kernel, reads: &[ReadView], writes: &mut [WriteView]) -> Result<()> {
    let reads = reads.iter().map(brought_down).collect::<Result<Vec<_>>>()?;
    let copies = writes.iter().map(|view| if view.is_on_host() { copied(view) } else { down(&view.span()) });
    let mut copies = copies.collect::<Result<Vec<_>>>()?;
    host::run(kernel, &reads, &mut copies)?;
    for (to, copy) in writes.iter_mut().zip(copies) {
        to.copy_from(&copy.into_read())?;
    }
    Ok(())
}

/// Returns a copy of host memory that will be written.
fn copied(view: &WriteView) -> Result<WriteView> {
    let copy = Buffer::zeroed(view.dtype(), view.len())?;
    let mut place = copy.write_all()?;
    place.bytes_mut().copy_from_slice(view.bytes());
    Ok(place)
}

impl ReadView {
    /// Returns a copy in host memory, after the queue has completed all earlier work.
    pub(crate) fn copied_down(&self) -> Result<WriteView> {
        down(&self.span())
    }

    /// Makes the queue of this view copy it to host memory. Returns the copy, which is complete after the event; `None` if the
    /// view is in host memory.
    pub(crate) fn copy_down(&self) -> Result<Option<(Buffer, Arc<dyn Event>)>> {
        copying_down(&self.span())
    }
}

impl WriteView {
    /// Does the same as [`ReadView::copy_down`].
    pub(crate) fn copy_down(&self) -> Result<Option<(Buffer, Arc<dyn Event>)>> {
        copying_down(&self.span())
    }

    /// Makes the queue of this view copy `from`, which is in host memory, to its first bytes.
    pub(crate) fn copy_up(&mut self, from: ReadView) {
        enqueue(&self.span().first(from.byte_len()), &[], |queue, to| queue.copy_up(from, to));
    }

    /// Does the same, so that readers on other queues wait for this copy only, not for later work.
    pub(crate) fn copy_up_ahead(&mut self, from: ReadView) {
        self.copy_up(from);
        if let Some((queue, order)) = self.span().place() {
            order.record_write(&**queue);
        }
    }

    /// Makes the queue of this view combine it with `from`, which is in host memory and first copied to the beginning of
    /// `scratch`, of the same queue and type.
    pub(crate) fn reduce_up(&mut self, op: ReduceOp, from: ReadView, scratch: &Buffer) -> Result<()> {
        let to = self.span();
        let mut place = scratch.write(0..from.len())?;
        place.copy_up(from);
        let from = place.span();
        enqueue(&to, &[], |queue, to| queue.reduce(op, from, to));
        Ok(())
    }
}

/// Enqueues work with one operand.
fn with(from: &ReadView, to: &WriteView, kernel: impl FnOnce(&dyn DeviceQueue, Span, Span)) -> Result<()> {
    let to = to.span();
    let from = readable_span(from, &to)?;
    let operand = from.clone();
    enqueue(&to, std::slice::from_ref(&operand), |queue, to| kernel(queue, from, to));
    Ok(())
}

/// Enqueues work that writes `to` and reads `operands`, all on one device, after all work that it depends on.
fn enqueue(to: &Span, operands: &[Span], kernel: impl FnOnce(&dyn DeviceQueue, Span)) {
    enqueue_all(std::slice::from_ref(to), operands, |queue| kernel(queue, to.clone()));
}

/// Does the same for work that writes several runs, all of one queue.
fn enqueue_all(to: &[Span], operands: &[Span], kernel: impl FnOnce(&dyn DeviceQueue)) {
    let Some((queue, _)) = to.first().and_then(Span::place) else { return };
    in_order(queue, to, operands, || kernel(&**queue));
}

/// Makes a queue do work that writes `to`, in its memory, and reads `operands`, after all work that this depends on.
pub(crate) fn in_order(queue: &Arc<dyn DeviceQueue>, to: &[Span], operands: &[Span], work: impl FnOnce()) {
    let written = || to.iter().filter_map(Span::place);
    let read = || operands.iter().filter_map(Span::place);
    written().for_each(|(_, order)| order.before_write(&**queue, SyncPoint::BeforeWrite));
    read().for_each(|(own, order)| order.before_read(own, queue));
    work();
    written().for_each(|(_, order)| order.after_write());
    read().for_each(|(own, order)| order.after_read(own, queue));
}

/// Returns true if the queue of `to` can read a view in place.
fn is_readable(view: &ReadView, to: &Span) -> bool {
    let from = view.span();
    let device = |span: &'_ Span| span.place().map(|(queue, _)| queue.device().to_owned());
    device(&from) == device(to)
}

/// Returns a span of a view that the queue of `to` can read: its own, or that of a copy.
fn readable_span(view: &ReadView, to: &Span) -> Result<Span> {
    if is_readable(view, to) {
        return Ok(view.span());
    }
    let copy = Buffer::zeroed_on(&to.queue(), view.dtype(), view.len())?;
    let mut place = copy.write_all()?;
    place.copy_up(match view.is_on_host() {
        true => snapshot(view, to.queue().device())?,
        false => view.copied_down()?.into_read(),
    });
    Ok(place.span())
}

/// Returns a copy of host memory, so that its owner may write it while `queue` has yet to read the copy.
fn snapshot(view: &ReadView, queue: Option<&Arc<dyn DeviceQueue>>) -> Result<ReadView> {
    let zeroed = |queue: &Arc<dyn DeviceQueue>| host_memory(&**queue, view.dtype(), view.len());
    let copy = queue.map_or_else(|| Buffer::zeroed(view.dtype(), view.len()), zeroed)?;
    copy.write_all()?.copy_from(view)?;
    copy.read_all()
}

/// Returns a view of the same elements in host memory, which may be the same view.
fn brought_down(view: &ReadView) -> Result<ReadView> {
    if view.is_on_host() { Ok(view.again()) } else { view.copied_down().map(WriteView::into_read) }
}

/// Begins to copy to host memory.
fn copying_down(from: &Span) -> Result<Option<(Buffer, Arc<dyn Event>)>> {
    let Some((queue, _)) = from.place() else { return Ok(None) };
    let copy = host_memory(&**queue, from.dtype(), from.len())?;
    queue.copy_down(from.clone(), copy.write_all()?);
    Ok(Some((copy, queue.record())))
}

/// Copies to host memory, and waits for the queue.
fn down(from: &Span) -> Result<WriteView> {
    let queue = from.queue();
    let Some(queue) = queue.device() else {
        return Err(Error::usage("host memory cannot be copied to the host", "use it in place"));
    };
    if queue.has_content() {
        warn(queue.device());
    }
    queue.count_copy_down(from.byte_len());
    let copy = host_memory(&**queue, from.dtype(), from.len())?;
    queue.copy_down(from.clone(), copy.write_all()?);
    synchronize(&**queue)?;
    copy.write_all()
}

/// Warns once that a program waits for its device.
fn warn(device: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!("the host reads or writes memory of {device}; each such access waits and copies");
    });
}
