//! Events: points in the work of a stream, and the bells that they ring.

use super::failure_watch::PendingFailure;
use super::stream::CudaStream;
use crate::device::cuda::driver::handle::{EventHandle, StreamHandle};
use crate::device::cuda::gpu::Gpu;
use crate::device::cuda::kernel_error::RefusalSnapshot;
use crate::device::{Event, Failure};
use crate::error::Result;
use crate::runtime;
use crate::waiting::alarm::Alarm;
use crate::waiting::doorbell::Bell;
use crate::waiting::lock::lock;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for which a wait polls before it sleeps: less than it takes to be woken.
const SPIN: Duration = Duration::from_micros(20);

/// A recorded event of the driver; it is recorded once.
pub(crate) struct RecordedEvent {
    pub(crate) handle: EventHandle,
    /// Number of the event on its stream, from 1 on.
    pub(crate) number: u64,
    pub(crate) gpu: Arc<Gpu>,
}

impl Drop for RecordedEvent {
    fn drop(&mut self) {
        self.gpu.give_back(self.handle);
    }
}

/// Information about a stream at the point of an event, collected when the event is recorded, and later.
pub(crate) struct Known {
    /// Failure that the host has seen.
    pub(crate) failure: Option<Failure>,
    /// Copy of the refusals of the stream's kernels up to the event; `None` if none is possible.
    pub(crate) snapshot: Option<Arc<RefusalSnapshot>>,
    /// Outcomes of watched work.
    pub(crate) pending_failures: Vec<Arc<PendingFailure>>,
    /// Number of times that the stream's failure was taken.
    pub(crate) takes: u64,
}

/// A point in the work of a stream.
pub(crate) struct CudaEvent {
    stream: Arc<CudaStream>,
    /// `None` if the driver could not record it: then it has happened, and carries that failure.
    recorded: Option<Arc<RecordedEvent>>,
    known: Known,
    /// Set once everything that follows from the event is done.
    is_over: AtomicBool,
}

impl CudaEvent {
    pub(crate) fn new(stream: Arc<CudaStream>, recorded: Option<Arc<RecordedEvent>>, known: Known) -> Self {
        CudaEvent { stream, recorded, known, is_over: AtomicBool::new(false) }
    }

    /// Returns the driver's event, if any.
    pub(crate) fn recorded(&self) -> Option<&Arc<RecordedEvent>> {
        self.recorded.as_ref()
    }

    /// Returns the refusals of the stream's kernels, until the host has read them.
    pub(crate) fn unread(&self) -> Option<&Arc<RefusalSnapshot>> {
        self.known.snapshot.as_ref().filter(|_| !self.is_over.load(Ordering::Acquire))
    }

    /// Returns the outcomes of watched work before it.
    pub(crate) fn pending_failures(&self) -> &[Arc<PendingFailure>] {
        &self.known.pending_failures
    }

    /// Returns the known failure.
    pub(crate) fn known_failure(&self) -> Option<Failure> {
        let lost = self.stream.gpu.lost().cloned().map(Failure::Fault);
        let read = || self.known.snapshot.as_ref()?.read(&self.stream.gpu);
        let watched = || {
            self.known
                .pending_failures
                .iter()
                .find_map(|pending| pending.error().cloned().map(Failure::Fault))
        };
        lost.or_else(|| self.known.failure.clone())
            .or_else(watched)
            .or_else(|| if self.is_over.load(Ordering::Acquire) { read() } else { None })
    }

    /// Drops the values that the work kept, and notes its refusals.
    fn finish(&self, recorded: &RecordedEvent) {
        let is_lost = self.stream.gpu.lost().is_some();
        self.stream.release(if is_lost { u64::MAX } else { recorded.number });
        if let Some(snapshot) = self.known.snapshot.as_ref().filter(|_| !is_lost) {
            self.stream.note(snapshot, recorded.number, self.known.takes);
        }
        self.is_over.store(true, Ordering::Release);
    }
}

impl Event for CudaEvent {
    fn has_happened(&self) -> bool {
        let Some(recorded) = &self.recorded else { return true };
        if self.is_over.load(Ordering::Acquire) {
            return true;
        }
        let happened = self.stream.gpu.has_happened(recorded.handle);
        if happened {
            self.finish(recorded);
        }
        happened
    }

    fn wait(&self, at_most: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < SPIN.min(at_most) {
            if self.has_happened() {
                return true;
            }
            runtime::yield_now();
        }
        let alarm = Arc::new(Alarm::default());
        self.ring(Arc::clone(&alarm) as Arc<dyn Bell>);
        alarm.wait(at_most.saturating_sub(start.elapsed()));
        self.has_happened()
    }

    fn is_settled(&self) -> bool {
        // Looks now at watched work without a known outcome: the caller must not continue after failed work.
        self.known.pending_failures.iter().all(|pending| !pending.look()) || self.stream.gpu.lost().is_some()
    }

    fn failure(&self) -> Option<Failure> {
        self.known_failure()
    }

    fn ring(&self, bell: Arc<dyn Bell>) {
        match &self.recorded {
            Some(recorded) if !self.has_happened() => {
                self.stream.ring(recorded, Arc::new(OneShotBell(Mutex::new(Some(bell)))));
            }
            _ => bell.ring(),
        }
    }
}

/// A bell until it is rung.
pub(crate) struct OneShotBell(Mutex<Option<Arc<dyn Bell>>>);

impl OneShotBell {
    /// Rings the bell, unless it has rung already.
    pub(crate) fn ring(&self) {
        let bell = lock(&self.0).take();
        bell.iter().for_each(|bell| bell.ring());
    }

    pub(crate) fn has_rung(&self) -> bool {
        lock(&self.0).is_none()
    }

    /// Makes a stream ring the bell when its work so far is done. It never does if the device is lost before.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the driver refuses.
    pub(crate) fn ring_on(self: Arc<Self>, gpu: &Gpu, stream: StreamHandle) -> Result<()> {
        /// Rings on a thread of the driver, where calls of the driver are not allowed.
        unsafe extern "C" fn ring(pending: *mut c_void) {
            // SAFETY: the pointer is from `into_raw`, and the driver calls this once.
            unsafe { Arc::from_raw(pending.cast::<OneShotBell>().cast_const()) }.ring();
        }
        let pending = Arc::into_raw(self);
        // SAFETY: the stream is valid, and the function accepts this argument.
        let status = unsafe { sys::cuLaunchHostFunc(stream.0, Some(ring), pending.cast_mut().cast()) };
        gpu.expect(status, "make an event ring a bell").inspect_err(|_| {
            // SAFETY: the driver has refused, and so does not call the function.
            drop(unsafe { Arc::from_raw(pending) });
        })
    }
}
