//! A stream of the driver with its work in flight: the values that the work keeps until it is done, and its outcome.
//!
//! Each piece of work has the number of the event that will be recorded next. A thread that queries an event sees
//! whether it has happened; first it drops the values kept by the work before it. Possibly no thread ever queries. So
//! the stream regularly records a mark itself, and the device's sweeper looks at the marks, too. A kept value may own
//! this stream, through the memory that it writes; the sweeper breaks such cycles.

use super::event::{CudaEvent, Known, OneShotBell, RecordedEvent};
use super::failure_watch::PendingFailures;
use super::sweeper::InFlight;
use crate::device::cuda::driver::handle::StreamHandle;
use crate::device::cuda::gpu::Gpu;
use crate::device::cuda::kernel_error::Refusals;
use crate::device::cuda::memory::DeviceAllocation;
use crate::device::{Event, Failure, SyncPoint, at};
use crate::error::Result;
use crate::memory::deferred_drop;
use crate::waiting::deadline;
use crate::waiting::lock::lock;
use cudarc::driver::sys;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Pieces of work after which a mark is recorded, if no event was.
const WORKS: usize = 32;

/// Bytes of host memory that are held before a mark is recorded.
const BYTES: usize = 1 << 20;

/// Memory, views and other values that work in flight keeps.
type HeldResource = Box<dyn Send>;

/// A stream with its work in flight.
pub(crate) struct CudaStream {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) handle: StreamHandle,
    /// Longest wait of the program for its work, in milliseconds.
    pub(crate) limit: AtomicU64,
    tail: Mutex<StreamTail>,
    /// Outcomes of work that is enqueued and watched.
    pub(crate) pending_failures: PendingFailures,
    /// Number of the last event before which all kept values are dropped.
    released: AtomicU64,
    /// Held by the thread that drops kept values, so that no other thread passes it.
    releasing: Mutex<()>,
}

/// The end of a stream, where work is enqueued.
pub(crate) struct StreamTail {
    /// Number of events that were recorded.
    recorded: u64,
    /// Values that are kept, by the number of the event after their work.
    held: VecDeque<(u64, HeldResource)>,
    /// Pieces of work since the last event.
    works: usize,
    /// Bytes of host memory that they hold.
    bytes: usize,
    marks: VecDeque<Arc<RecordedEvent>>,
    /// Bells that have not rung yet.
    bells: Vec<(Arc<RecordedEvent>, Arc<OneShotBell>)>,
    /// Stream on which events ring bells, and the number of the last of them.
    ringing: Option<(StreamHandle, u64)>,
    /// True if the sweeper has this stream.
    is_swept: bool,
    /// The first failure not taken yet, as far as the host knows.
    pub(crate) failure: Option<Failure>,
    pub(crate) refusals: Refusals,
    /// Memory for the launches of one program after the other.
    pub(crate) scratch: Option<DeviceAllocation>,
}

impl StreamTail {
    /// Returns the number of the event that is recorded next.
    pub(crate) fn next(&self) -> u64 {
        self.recorded + 1
    }

    /// Keeps a value until the work that was enqueued so far is done.
    pub(crate) fn hold(&mut self, held: impl Send + 'static) {
        self.held.push_back((self.recorded + 1, Box::new(held)));
    }

    /// Returns true if values are kept without a mark or event after them.
    fn has_unmarked(&self) -> bool {
        let last = self.held.back().map_or(0, |(number, _)| *number);
        last > self.marks.back().map_or(0, |mark| mark.number)
    }
}

impl CudaStream {
    /// Creates a stream.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the driver refuses.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Arc<Self>> {
        let tail = StreamTail {
            recorded: 0,
            held: VecDeque::new(),
            works: 0,
            bytes: 0,
            marks: VecDeque::new(),
            bells: Vec::new(),
            ringing: None,
            is_swept: false,
            failure: None,
            refusals: Refusals::default(),
            scratch: None,
        };
        let stream = Arc::new(CudaStream {
            gpu: Arc::clone(gpu),
            handle: gpu.create_stream()?,
            limit: AtomicU64::new(u64::try_from(deadline::at_first().as_millis()).unwrap_or(u64::MAX)),
            tail: Mutex::new(tail),
            pending_failures: PendingFailures::default(),
            released: AtomicU64::new(0),
            releasing: Mutex::default(),
        });
        let mut streams = lock(&gpu.streams);
        streams.retain(|stream| stream.strong_count() > 0);
        let weak: Weak<Self> = Arc::downgrade(&stream);
        streams.push(weak);
        drop(streams);
        Ok(stream)
    }

    pub(crate) fn tail(&self) -> MutexGuard<'_, StreamTail> {
        lock(&self.tail)
    }

    /// Enqueues work on `held`, which is kept until the work is done. A failure to do so is a failure of the queue.
    ///
    /// `bytes` is the size of the host memory in `held`.
    pub(crate) fn enqueue<H: Send + 'static>(
        self: &Arc<Self>,
        held: H,
        bytes: usize,
        work: impl FnOnce(&H, &mut StreamTail) -> Result<()>,
    ) {
        let noted = |held: &H, tail: &mut StreamTail| {
            // Before another thread can record an event.
            if let Err(error) = work(held, tail) {
                tail.failure.get_or_insert(Failure::Fault(error));
            }
            Ok(())
        };
        if let Err(error) = self.try_enqueue(held, bytes, noted) {
            self.tail().failure.get_or_insert(Failure::Fault(error));
        }
    }

    /// Enqueues work as [`Self::enqueue`] does, but leaves a failure to do so to the caller.
    ///
    /// # Errors
    /// The error of the work, or of a lost device.
    pub(crate) fn try_enqueue<H: Send + 'static>(
        self: &Arc<Self>,
        held: H,
        bytes: usize,
        work: impl FnOnce(&H, &mut StreamTail) -> Result<()>,
    ) -> Result<()> {
        if let Some(lost) = self.gpu.lost() {
            return Err(lost.clone());
        }
        // Until the sweeper has the stream.
        let _enqueuing = self.gpu.enqueuing.read().unwrap_or_else(PoisonError::into_inner);
        let mut tail = self.tail();
        let outcome = self.gpu.enter().and_then(|_current| work(&held, &mut tail));
        tail.hold(held);
        tail.works += 1;
        tail.bytes += bytes;
        let is_due = tail.works >= WORKS || tail.bytes >= BYTES;
        if is_due {
            self.mark(&mut tail);
        }
        self.let_sweep(&mut tail);
        drop(tail);
        if is_due {
            self.look_at_marks();
        }
        outcome
    }

    /// Records an event.
    pub(crate) fn record(self: &Arc<Self>) -> CudaEvent {
        let mut tail = self.tail();
        let snapshot = self.snapshot(&mut tail);
        if snapshot.is_some() {
            self.let_sweep(&mut tail);
        }
        let recorded = self.record_at(&mut tail);
        if let Err(error) = &recorded {
            tail.failure.get_or_insert(Failure::Fault(error.clone()));
        }
        let known = Known {
            failure: tail.failure.clone(),
            snapshot,
            pending_failures: self.pending_failures.now(),
            takes: tail.refusals.takes,
        };
        drop(tail);
        CudaEvent::new(Arc::clone(self), recorded.ok(), known)
    }

    /// Records a driver's event at the end of the stream.
    fn record_at(&self, tail: &mut StreamTail) -> Result<Arc<RecordedEvent>> {
        let _current = self.gpu.enter()?;
        let recorded =
            RecordedEvent { handle: self.gpu.event()?, number: tail.next(), gpu: Arc::clone(&self.gpu) };
        // SAFETY: both handles are valid.
        let status = unsafe { sys::cuEventRecord(recorded.handle.0, self.handle.0) };
        self.gpu.expect(status, "record an event")?;
        tail.recorded += 1;
        tail.works = 0;
        tail.bytes = 0;
        Ok(Arc::new(recorded))
    }

    /// Records an event for the stream's own use. If that fails, the next attempt serves the same purpose.
    fn mark(&self, tail: &mut StreamTail) {
        if let Ok(mark) = self.record_at(tail) {
            tail.marks.push_back(mark);
        }
    }

    /// Makes work that is enqueued from now on wait for an event of this device.
    pub(crate) fn wait_for(&self, event: &CudaEvent) {
        let Some(recorded) = event.recorded() else { return };
        let waits = self.gpu.enter().and_then(|_current| {
            // SAFETY: both handles are valid; the driver notes which recording is meant before it returns.
            let status = unsafe { sys::cuStreamWaitEvent(self.handle.0, recorded.handle.0, 0) };
            self.gpu.expect(status, "wait for an event")
        });
        if let Err(error) = waits {
            self.tail().failure.get_or_insert(Failure::Fault(error));
        }
    }

    /// Drops the values kept by the work before an event that has happened. After the return they are dropped, with two
    /// exceptions: this thread is doing so already, further up the stack, or they keep memory of other libraries, which is
    /// released soon after.
    pub(crate) fn release(&self, number: u64) {
        thread_local! {
            static RELEASING: Cell<bool> = const { Cell::new(false) };
        }
        if self.released.load(Ordering::Acquire) >= number || RELEASING.replace(true) {
            return;
        }
        /// Ends the release even if a drop panics.
        struct Over;
        impl Drop for Over {
            fn drop(&mut self) {
                RELEASING.set(false);
            }
        }
        let over = Over;
        let releasing = lock(&self.releasing);
        let mut tail = self.tail();
        let held = tail.held.partition_point(|(before, _)| *before <= number);
        let held: Vec<(u64, HeldResource)> = tail.held.drain(..held).collect();
        let marks = tail.marks.partition_point(|mark| mark.number <= number);
        let marks: Vec<Arc<RecordedEvent>> = tail.marks.drain(..marks).collect();
        drop(tail);
        let keepers = deferred_drop::collect(|| drop((held, marks)));
        self.released.fetch_max(number, Ordering::Release);
        drop((releasing, over));
        // They run code of other libraries.
        drop(keepers);
    }

    /// Drops the values kept by the work before the last mark that has happened.
    fn look_at_marks(&self) {
        let mut done = None;
        loop {
            let behind = done.unwrap_or(0);
            let next = self.tail().marks.iter().find(|mark| mark.number > behind).cloned();
            match next {
                Some(mark) if self.gpu.has_happened(mark.handle) => done = Some(mark.number),
                _ => break,
            }
        }
        if self.gpu.lost().is_some() {
            done = Some(u64::MAX);
        }
        if let Some(done) = done {
            self.release(done);
        }
    }

    /// Makes the sweeper poll this stream until its work is done.
    pub(crate) fn let_sweep(self: &Arc<Self>, tail: &mut StreamTail) {
        if !std::mem::replace(&mut tail.is_swept, true) {
            let stream = Arc::clone(self);
            self.gpu.sweeper.add(stream);
        }
    }

    /// Makes an event ring a bell when it happens, by a callback of the driver or when the sweeper sees it.
    pub(crate) fn ring(self: &Arc<Self>, recorded: &Arc<RecordedEvent>, pending: Arc<OneShotBell>) {
        let mut tail = self.tail();
        tail.bells.retain(|(_, pending)| !pending.has_rung());
        tail.bells.push((Arc::clone(recorded), Arc::clone(&pending)));
        self.let_sweep(&mut tail);
        // Bells ring in the order of their stream: an earlier one behind others already there would be late.
        let by_itself = match tail.ringing {
            Some((_, last)) if last > recorded.number => Ok(()),
            Some((stream, _)) => self.ring_behind(&mut tail, stream, recorded, pending),
            None => self
                .gpu
                .create_stream()
                .and_then(|stream| self.ring_behind(&mut tail, stream, recorded, pending)),
        };
        drop(tail);
        self.gpu.sweeper.hurry();
        if let Err(error) = by_itself {
            tracing::debug!("{error}");
        }
    }

    fn ring_behind(
        &self,
        tail: &mut StreamTail,
        stream: StreamHandle,
        recorded: &RecordedEvent,
        pending: Arc<OneShotBell>,
    ) -> Result<()> {
        tail.ringing = Some((stream, recorded.number));
        let _current = self.gpu.enter()?;
        // SAFETY: both handles are valid.
        let status =
            at(SyncPoint::Bell, || unsafe { sys::cuStreamWaitEvent(stream.0, recorded.handle.0, 0) });
        self.gpu.expect(status, "wait for an event")?;
        pending.ring_on(&self.gpu, stream)
    }
}

impl InFlight for CudaStream {
    fn look(&self) -> bool {
        // Another thread is enqueuing, which may take long.
        let Ok(mut tail) = self.tail.try_lock() else { return true };
        if tail.has_unmarked() {
            self.mark(&mut tail);
        }
        let happened = |(recorded, _): &mut (Arc<RecordedEvent>, _)| self.gpu.has_happened(recorded.handle);
        let rung: Vec<_> = tail.bells.extract_if(.., happened).collect();
        drop(tail);
        rung.iter().for_each(|(_, pending)| pending.ring());
        drop(rung);
        self.look_at_marks();
        let mut tail = self.tail();
        let is_idle = tail.held.is_empty() && tail.bells.is_empty();
        // Of several threads that poll at the same time, one removes it from the list.
        let is_over = is_idle && tail.is_swept;
        tail.is_swept &= !is_idle;
        !is_over
    }

    fn wait(self: Arc<Self>, at_most: Duration) {
        self.record().wait(at_most);
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let tail = self.tail.get_mut().unwrap_or_else(PoisonError::into_inner);
        tail.held.clear();
        tail.scratch = None;
        tail.refusals = Refusals::default();
        if let Ok(_current) = self.gpu.enter() {
            for stream in tail.ringing.map(|(stream, _)| stream).into_iter().chain([self.handle]) {
                // SAFETY: the driver made it, and no more work is enqueued.
                unsafe { sys::cuStreamDestroy_v2(stream.0) };
            }
        }
    }
}
