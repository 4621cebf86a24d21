//! `Late`: a device for tests, whose memory only its own thread reaches, and which works as late as it may.
//!
//! The host kernels do the work, so that correct results have the bits of the host. No work is done before a caller
//! waits for it, and queues overtake each other unless an event forbids it: a program with a missing wait gets wrong
//! bytes, every time. [`Late::leaving_out`] omits waits deliberately, for tests of tests.

#![allow(clippy::disallowed_methods, reason = "a device, with a separate thread")]

mod cells;
mod schedule;

use crate::device::codec::{Codec, CodecError};
use crate::device::operations::program::Program;
use crate::device::{Allocation, Device, DeviceQueue, Event, Failure, Kernel, Queue, host};
use crate::error::{Error, Result};
use crate::memory::dtype::ReduceOp;
use crate::memory::{Keeper, ReadView, Span, WriteView};
use crate::transport::Bell;
use crate::waiting::alarm::Alarm;
use cells::{Cells, allocate, run_on_cells};
use schedule::{LatePoint, LateSchedule, LateWork};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// A kind of waiting that is left out, to see that it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Omission {
    /// The wait of a queue for another queue, by its number, counted from 0.
    QueueWait(u64),
    /// All waits of the host: whatever was enqueued counts as done.
    HostWaits,
}

/// A device that works late; see the [module](self).
///
/// ```
/// use hexagram_physical::testing::late::Late;
/// use hexagram_physical::Buffer;
///
/// let late = Late::new(0);
/// let x = Buffer::from_slice_on(&late.queue(), &[1.0f32, 2.0])?;
/// let mut y = Buffer::from_slice_on(&late.queue(), &[0.5f32, 0.5])?;
/// y.write_all()?.add_scaled(2.0, &x.read_all()?)?;
/// assert!(y.read_all()?.host_bytes().is_none());
/// assert_eq!(*y.host::<f32>()?, [2.5, 4.5]);
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
pub struct Late(Arc<WorkerHandle>);

impl Late {
    /// Starts a device. `seed` determines the random choices; with 0 there are none.
    pub fn new(seed: u64) -> Self {
        Self::start(seed, None)
    }

    /// Starts a device that leaves out some waits.
    pub fn leaving_out(omission: Omission) -> Self {
        Self::start(0, Some(omission))
    }

    fn start(seed: u64, omission: Option<Omission>) -> Self {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let name = format!("late:{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let state = LateState {
            schedule: LateSchedule::new(seed),
            bells: Vec::new(),
            waits: 0,
            events: 0,
            allocations: 0,
            copies_down: 0,
            bytes_down: 0,
            prepared: 0,
            over: false,
        };
        let shared =
            Arc::new(LateShared { name, omission, state: Mutex::new(state), wanted: Condvar::new() });
        let worker = Arc::clone(&shared);
        std::thread::spawn(move || worker.work());
        Late(Arc::new(WorkerHandle(shared)))
    }

    /// Creates a queue.
    pub fn queue(&self) -> Queue {
        LateQueue::create(&self.0)
    }

    /// Allocates zeroed memory like another library, whose `owner` is dropped with it; see [`Buffer::over_foreign`].
    ///
    /// [`Buffer::over_foreign`]: crate::Buffer::over_foreign
    pub fn foreign(&self, bytes: usize, owner: Keeper) -> Allocation {
        allocate(bytes, Some(owner))
    }

    /// Returns how often queues have waited for others so far.
    pub fn queue_waits(&self) -> u64 {
        self.0.0.state().waits
    }

    /// Returns how many events queues have recorded so far.
    pub fn events(&self) -> u64 {
        self.0.0.state().events
    }

    /// Returns how often queues have allocated memory so far.
    pub fn allocations(&self) -> u64 {
        self.0.0.state().allocations
    }

    /// Returns the number of copies to the host that a caller waited for, not counting messages.
    pub fn copies_down(&self) -> u64 {
        self.0.0.state().copies_down
    }

    /// Returns how often a program was made ready before its first launch.
    pub fn prepared(&self) -> u64 {
        self.0.0.state().prepared
    }

    /// Returns the number of bytes of these copies.
    pub fn bytes_down(&self) -> u64 {
        self.0.0.state().bytes_down
    }
}

impl Device for Late {
    fn name(&self) -> &str {
        &self.0.0.name
    }

    fn queue(&self) -> Result<Queue> {
        Ok(Late::queue(self))
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        // Work that is never awaited holds memory, which holds its queue, which holds the device.
        let mut state = self.0.0.state();
        state.schedule.want_all();
        self.0.0.wanted.notify_one();
    }
}

/// Ends the worker with the last queue.
struct WorkerHandle(Arc<LateShared>);

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.0.state().over = true;
        self.0.wanted.notify_one();
    }
}

/// State that the worker and the queues share.
struct LateShared {
    name: String,
    omission: Option<Omission>,
    state: Mutex<LateState>,
    /// Wakes the worker. Not notified of work before a caller waits for it.
    wanted: Condvar,
}

struct LateState {
    schedule: LateSchedule,
    bells: Vec<(LatePoint, Arc<dyn Bell>)>,
    /// Number of waits of queues for others.
    waits: u64,
    /// Number of events that were recorded.
    events: u64,
    /// Number of allocations.
    allocations: u64,
    /// Number of copies to the host, not counting messages.
    copies_down: u64,
    /// Number of their bytes.
    bytes_down: u64,
    /// Number of programs that were made ready.
    prepared: u64,
    over: bool,
}

impl LateShared {
    fn state(&self) -> MutexGuard<'_, LateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does one job after the other. Jobs and bells run, and are dropped, while the state is free.
    fn work(&self) {
        let mut state = self.state();
        loop {
            let Some((queue, job)) = state.schedule.next() else {
                if state.over {
                    return;
                }
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            job();
            state = self.state();
            state.schedule.finish(queue);
            let bells = state.take_bells();
            drop(state);
            bells.iter().for_each(|bell| bell.ring());
            state = self.state();
        }
    }
}

impl LateState {
    /// Takes the bells of events that have happened.
    fn take_bells(&mut self) -> Vec<Arc<dyn Bell>> {
        let schedule = &self.schedule;
        self.bells.extract_if(.., |(point, _)| schedule.has_happened(*point)).map(|(_, bell)| bell).collect()
    }
}

/// First failure that has not been taken.
#[derive(Default)]
struct FailureSlot(Mutex<Option<Failure>>);

impl FailureSlot {
    fn get(&self) -> MutexGuard<'_, Option<Failure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct LateQueue {
    device: Arc<WorkerHandle>,
    number: usize,
    /// Failure of the queue's jobs, which may outlive the queue: the next one of this number has its own.
    failure: Arc<FailureSlot>,
}

impl LateQueue {
    fn create(device: &Arc<WorkerHandle>) -> Queue {
        let number = device.0.state().schedule.open();
        Queue::of(Arc::new(LateQueue { device: Arc::clone(device), number, failure: Arc::default() }))
    }

    fn shared(&self) -> &Arc<LateShared> {
        &self.device.0
    }

    /// Enqueues a job, and returns the point after it.
    fn enqueue(&self, job: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> LatePoint {
        let first = Arc::clone(&self.failure);
        let job: LateWork = Box::new(move || {
            let outcome = catch_unwind(AssertUnwindSafe(job))
                .unwrap_or_else(|panic| Err(Failure::Fault(Error::panicked("a kernel", &*panic))));
            if let Err(failure) = outcome {
                first.get().get_or_insert(failure);
            }
        });
        let mut state = self.shared().state();
        if state.schedule.enqueue(self.number, job) {
            self.shared().wanted.notify_one();
        }
        state.schedule.end(self.number)
    }

    /// Makes the queue wait for an event. Returns true unless that is omitted.
    fn is_behind(&self, event: &LateEvent) -> bool {
        let mut state = self.shared().state();
        let number = state.waits;
        state.waits += 1;
        if self.shared().omission == Some(Omission::QueueWait(number)) {
            return false;
        }
        state.schedule.wait(self.number, event.point);
        true
    }
}

impl Drop for LateQueue {
    fn drop(&mut self) {
        self.shared().state().schedule.close(self.number);
    }
}

impl DeviceQueue for LateQueue {
    fn device(&self) -> &str {
        &self.shared().name
    }

    fn another(&self) -> Result<Queue> {
        Ok(Self::create(&self.device))
    }

    fn alloc(&self, bytes: usize) -> Result<Allocation> {
        self.shared().state().allocations += 1;
        Ok(allocate(bytes, None))
    }

    fn copy_up(&self, from: ReadView, to: Span) {
        self.enqueue(move || Cells::write(&to, |to| to.copy_from_slice(from.bytes())));
    }

    fn copy_down(&self, from: Span, mut to: WriteView) {
        self.enqueue(move || {
            let cells = Cells::read(&from)?;
            let bytes = &bytemuck::cast_slice(&cells)[..from.byte_len()];
            to.bytes_mut().copy_from_slice(bytes);
            Ok(())
        });
    }

    fn clear(&self, to: Span) {
        self.enqueue(move || Cells::write(&to, |to| to.fill(0)));
    }

    fn copy(&self, from: Span, to: Span) {
        self.enqueue(move || Cells::combine(&from, &to, |from, to| to.copy_from_slice(from)));
    }

    fn reduce(&self, op: ReduceOp, from: Span, to: Span) {
        let dtype = to.dtype();
        self.enqueue(move || Cells::combine(&from, &to, |from, to| host::reduce(op, dtype, from, to)));
    }

    fn scale(&self, factor: f64, to: Span) {
        let dtype = to.dtype();
        self.enqueue(move || Cells::write(&to, |to| host::scale(dtype, factor, to)));
    }

    fn add_scaled(&self, weight: f64, from: Span, to: Span) {
        let dtype = to.dtype();
        self.enqueue(move || {
            Cells::combine(&from, &to, |from, to| host::add_scaled(dtype, weight, from, to))
        });
    }

    fn weighted_sum(&self, terms: Vec<(f64, Option<Span>)>, to: Span) {
        self.enqueue(move || {
            let bytes = to.byte_len();
            let read = |(weight, term): &(f64, Option<Span>)| {
                Ok((*weight, term.as_ref().map(Cells::read).transpose()?))
            };
            let cells = terms.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
            let terms: Vec<(f64, Option<&[u8]>)> = cells
                .iter()
                .map(|(weight, cells)| {
                    (*weight, cells.as_deref().map(|cells| &bytemuck::cast_slice(cells)[..bytes]))
                })
                .collect();
            Cells::write(&to, |bytes| host::weighted_sum(to.dtype(), &terms, bytes))
        });
    }

    fn encode(&self, codec: &dyn Codec, from: Span, to: Span, seed: u64) -> bool {
        let Some(codec) = codec.shared() else { return false };
        self.enqueue(move || {
            let largest = codec.encoded_len(from.len());
            let before = from.offset() / from.dtype().size();
            let size = Cells::combine(&from, &to, |from, to| host::encode(&*codec, from, to, seed))?;
            let refusal = match size {
                Ok(size) if size == largest => return Ok(()),
                Ok(size) => CodecError::damaged(format!("{size} bytes instead of {largest}")),
                Err(CodecError::NotFinite { index, value }) => {
                    CodecError::NotFinite { index: before + index, value }
                }
                Err(refusal) => refusal,
            };
            Err(Failure::Refused { codec: codec.name(), refusal })
        });
        true
    }

    fn decode(&self, codec: &dyn Codec, from: Span, weight: Option<f32>, to: Span) -> bool {
        let Some(codec) = codec.shared() else { return false };
        self.enqueue(move || {
            let decoded = Cells::combine(&from, &to, |from, to| host::decode(&*codec, from, weight, to))?;
            decoded.map_err(|refusal| Failure::Refused { codec: codec.name(), refusal })
        });
        true
    }

    fn runs(&self, _: &dyn Kernel) -> bool {
        true
    }

    fn run(&self, kernel: &Arc<dyn Kernel>, reads: Vec<Span>, writes: Vec<Span>) -> bool {
        let kernel = Arc::clone(kernel);
        self.enqueue(move || run_on_cells(&*kernel, &reads, &writes));
        true
    }

    fn prepare(&self, _: &Program) -> Result<()> {
        self.shared().state().prepared += 1;
        Ok(())
    }

    fn count_copy_down(&self, bytes: usize) {
        let mut state = self.shared().state();
        state.copies_down += 1;
        state.bytes_down += bytes as u64;
    }

    fn record(&self) -> Arc<dyn Event> {
        let failure = Arc::new(OnceLock::new());
        let own = Arc::clone(&self.failure);
        let carried = Arc::clone(&failure);
        let point = self.enqueue(move || {
            own.get().iter().for_each(|first| _ = carried.set(first.clone()));
            Ok(())
        });
        self.shared().state().events += 1;
        Arc::new(LateEvent { shared: Arc::clone(self.shared()), point, failure })
    }

    fn wait(&self, event: &Arc<dyn Event>) {
        let Some(event) = event.downcast::<LateEvent>() else { return };
        self.is_behind(event);
    }

    fn wait_to_read(&self, event: &Arc<dyn Event>) {
        let Some(event) = event.downcast::<LateEvent>() else { return };
        if self.is_behind(event) {
            let carried = Arc::clone(&event.failure);
            self.enqueue(move || carried.get().map_or(Ok(()), |failure| Err(failure.clone())));
        }
    }

    fn take_failure(&self) -> Option<Failure> {
        self.failure.get().take()
    }
}

struct LateEvent {
    shared: Arc<LateShared>,
    point: LatePoint,
    /// The failure that the queue had when this happened.
    failure: Arc<OnceLock<Failure>>,
}

impl LateEvent {
    /// Makes the device work until this event has happened. Returns true if it has, or if the test omits the wait.
    fn want(&self, state: &mut LateState) -> bool {
        if self.shared.omission == Some(Omission::HostWaits) {
            return true;
        }
        if state.schedule.want(self.point) {
            self.shared.wanted.notify_one();
        }
        state.schedule.has_happened(self.point)
    }
}

impl Event for LateEvent {
    fn has_happened(&self) -> bool {
        self.want(&mut self.shared.state())
    }

    fn wait(&self, at_most: Duration) -> bool {
        let mut state = self.shared.state();
        if self.want(&mut state) {
            return true;
        }
        let alarm = Arc::new(Alarm::default());
        state.bells.push((self.point, Arc::clone(&alarm) as Arc<dyn Bell>));
        drop(state);
        alarm.wait(at_most)
    }

    fn failure(&self) -> Option<Failure> {
        self.failure.get().cloned()
    }

    fn ring(&self, bell: Arc<dyn Bell>) {
        let mut state = self.shared.state();
        if self.want(&mut state) {
            drop(state);
            return bell.ring();
        }
        state.bells.push((self.point, bell));
    }
}

#[cfg(test)]
pub(crate) mod tests;
