//! Times of a GPU: when work of a stream was done, on the host's clock.
//!
//! Events of the driver give their distance from another event, to half a microsecond, but no absolute time. So one
//! event is the *base*: it is recorded on an idle stream, and the host reads its clock before that, and after it has
//! seen the event happen. The moment lies between the two, and other events have their distance from it.
//!
//! ```text
//! host      before ──► record        ◄── seen: after
//! GPU                      base ─────────────────────► event: elapsed time
//! ```
//!
//! The driver returns milliseconds as f32, which get coarse, and the clocks drift apart. So the base is renewed; a
//! timestamp keeps the base that was in use when it was recorded.

use crate::device::Timestamp;
use crate::device::cuda::driver::handle::{EventHandle, StreamHandle};
use crate::device::cuda::gpu::Gpu;
use crate::error::{Error, Result};
use crate::runtime::{self, Instant};
use crate::waiting::lock::lock;
use cudarc::driver::sys::{self, CUevent_flags};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{self, Duration};

/// Age at which a base is renewed: until then, milliseconds as f32 have the driver's precision.
const AGE: Duration = Duration::from_secs(8);

/// Number of events from which the base is chosen: the one with the most precise moment.
const TRIES: usize = 4;

/// Longest wait for the event of a base at the first attempt, when a trace starts, and at later ones.
const FIRST: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_millis(1);

/// Clock of a GPU: bases for the times of events, and unused events.
#[derive(Default)]
pub(crate) struct GpuClock {
    bases: Mutex<TimestampBases>,
    spare: Mutex<Vec<EventHandle>>,
}

#[derive(Default)]
struct TimestampBases {
    /// The last one is in use for new timestamps; the others belong to old timestamps.
    all: Vec<Arc<Base>>,
    /// Stream on which nothing else runs.
    stream: Option<StreamHandle>,
    /// Moment of the last attempt to make one.
    tried: Option<Instant>,
}

/// An event that has happened, and when that was.
struct Base {
    event: EventHandle,
    moment: Instant,
    error: Duration,
}

impl GpuClock {
    /// Frees stream and events; the GPU's context must be current, and they must be unused.
    pub(crate) fn destroy(&self) {
        let TimestampBases { all, stream, .. } = std::mem::take(&mut *lock(&self.bases));
        let spare = std::mem::take(&mut *lock(&self.spare));
        for event in all.iter().map(|base| base.event).chain(spare) {
            // SAFETY: the driver made it, and it is not in use.
            unsafe { sys::cuEventDestroy_v2(event.0) };
        }
        if let Some(stream) = stream {
            // SAFETY: as above.
            unsafe { sys::cuStreamDestroy_v2(stream.0) };
        }
    }

    /// Returns the base for a new timestamp, renewed if it is old.
    fn base(&self, gpu: &Gpu) -> Result<Arc<Base>> {
        let mut bases = lock(&self.bases);
        let now = runtime::now();
        let is_new = bases.tried.is_some_and(|tried| now.saturating_duration_since(tried) < AGE);
        if !is_new {
            let limit = if bases.tried.replace(now).is_none() { FIRST } else { LATER };
            // If that fails, the old base is less precise, but still correct.
            if let Err(error) = self.renew(gpu, &mut bases, limit) {
                tracing::debug!("{error}");
            }
        }
        bases.all.last().cloned().ok_or_else(|| {
            let cause = io::Error::from(io::ErrorKind::TimedOut);
            Error::system(format!("set the clock of {}", gpu.name), cause, "check for other work on the GPU")
        })
    }

    /// Replaces the base, and drops the old bases that no timestamp needs.
    fn renew(&self, gpu: &Gpu, bases: &mut TimestampBases, limit: Duration) -> Result<()> {
        let stream = match bases.stream {
            Some(stream) => stream,
            None => *bases.stream.insert(gpu.create_stream()?),
        };
        let base = self.measure(gpu, stream, limit)?;
        let unused = bases.all.extract_if(.., |base| Arc::strong_count(base) == 1);
        lock(&self.spare).extend(unused.map(|base| base.event));
        bases.all.push(Arc::new(base));
        Ok(())
    }

    /// Makes a base.
    fn measure(&self, gpu: &Gpu, stream: StreamHandle, limit: Duration) -> Result<Base> {
        let mut best = self.happen(gpu, stream, limit)?;
        for _ in 1..TRIES {
            let Ok(next) = self.happen(gpu, stream, LATER) else { break };
            let is_better = next.error < best.error;
            let worse = if is_better { std::mem::replace(&mut best, next) } else { next };
            lock(&self.spare).push(worse.event);
        }
        Ok(best)
    }

    /// Records an event, and reads the clock before it and after it has happened.
    fn happen(&self, gpu: &Gpu, stream: StreamHandle, limit: Duration) -> Result<Base> {
        let _current = gpu.enter()?;
        let event = self.event(gpu)?;
        let before = runtime::now();
        let started = time::Instant::now();
        let happened = record(gpu, event, stream).map(|()| {
            while !gpu.has_happened(event) && started.elapsed() < limit {
                runtime::yield_now();
            }
        });
        let width = runtime::now().saturating_duration_since(before);
        let outcome = happened.and_then(|()| elapsed(gpu, event, event));
        if let Err(error) = outcome {
            lock(&self.spare).push(event);
            return Err(error);
        }
        Ok(Base { event, moment: before + width / 2, error: width / 2 })
    }

    /// Makes the next timestamp renew the base.
    #[cfg(test)]
    pub(crate) fn grow_old(&self) {
        lock(&self.bases).tried = None;
    }

    /// Returns the number of kept bases.
    #[cfg(test)]
    pub(crate) fn bases(&self) -> usize {
        lock(&self.bases).all.len()
    }

    /// Returns an unused event with a time.
    fn event(&self, gpu: &Gpu) -> Result<EventHandle> {
        let spare = lock(&self.spare).pop();
        spare.map_or_else(|| gpu.create_event(CUevent_flags::CU_EVENT_DEFAULT), Ok)
    }
}

/// Enqueues an event, where the context is current.
fn record(gpu: &Gpu, event: EventHandle, stream: StreamHandle) -> Result<()> {
    // SAFETY: both handles are valid.
    let status = unsafe { sys::cuEventRecord(event.0, stream.0) };
    gpu.expect(status, "record a timestamp")
}

/// Returns the time from one event to another, in milliseconds; the context must be current. Fails unless both have
/// happened.
fn elapsed(gpu: &Gpu, from: EventHandle, to: EventHandle) -> Result<f32> {
    let mut milliseconds = 0.0;
    // SAFETY: both handles are valid, and the pointer is valid for a write of one number.
    let status = unsafe { (gpu.driver.elapsed)(&mut milliseconds, from.0, to.0) };
    gpu.expect(status, "read a timestamp")?;
    Ok(milliseconds)
}

/// A point in the work of a stream, possibly another library's.
pub(crate) struct CudaTimestamp {
    gpu: Arc<Gpu>,
    event: EventHandle,
    base: Arc<Base>,
}

impl CudaTimestamp {
    /// Enqueues a timestamp. If the driver refuses, its time stays unknown: the measured work must not fail because of that.
    pub(crate) fn record(gpu: &Arc<Gpu>, stream: StreamHandle) -> Arc<dyn Timestamp> {
        let recorded = Self::try_record(gpu, stream);
        recorded.map_or_else(
            |error| {
                tracing::debug!("{error}");
                Arc::new(Unknown) as Arc<dyn Timestamp>
            },
            |recorded| Arc::new(recorded),
        )
    }

    fn try_record(gpu: &Arc<Gpu>, stream: StreamHandle) -> Result<Self> {
        // Before the event, so that no time is negative.
        let base = gpu.clock.base(gpu)?;
        let _current = gpu.enter()?;
        let event = gpu.clock.event(gpu)?;
        let timestamp = CudaTimestamp { gpu: Arc::clone(gpu), event, base };
        record(gpu, event, stream)?;
        Ok(timestamp)
    }
}

impl Timestamp for CudaTimestamp {
    fn has_passed(&self) -> bool {
        self.gpu.has_happened(self.event)
    }

    fn moment(&self) -> Option<Instant> {
        if !self.has_passed() {
            return None;
        }
        let _current = self.gpu.enter().ok()?;
        let milliseconds = elapsed(&self.gpu, self.base.event, self.event).ok()?;
        let after = Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).ok()?;
        self.base.moment.checked_add(after)
    }

    fn error(&self) -> Duration {
        self.base.error
    }
}

impl Drop for CudaTimestamp {
    fn drop(&mut self) {
        lock(&self.gpu.clock.spare).push(self.event);
    }
}

/// A point whose time stays unknown.
pub(crate) struct Unknown;

impl Timestamp for Unknown {
    fn has_passed(&self) -> bool {
        true
    }

    fn moment(&self) -> Option<Instant> {
        None
    }

    fn error(&self) -> Duration {
        Duration::ZERO
    }
}
