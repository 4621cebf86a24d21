//! Operations in progress, and the wait for them: without the interpreter lock, and interruptible by Ctrl-C.

use crate::callbacks;
use crate::error::{exception, late, usage};
use crate::fork::Generation;
use crate::memory::{elements_owner, gpu};
use hexagram::logical::executor::Ticket;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// Maximum wait between two checks for signals.
const SLICE: Duration = Duration::from_millis(100);

/// Result of an operation.
#[derive(Debug, Clone)]
pub(crate) enum WorkValue {
    /// No value.
    Nothing,
    /// Rank from which a message came.
    Rank(usize),
    /// Number of clocks, or of an element.
    Count(u64),
    /// Number, such as a weight.
    Number(f64),
    /// Numbers of one exchange on both of its ranks.
    Exchanged(u64, u64),
    /// Clock of the pulled values, and the versions of their shards.
    Pulled(u64, Vec<u64>),
}

/// An operation in progress.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Work {
    ticket: Ticket<WorkValue>,
    generation: Generation,
    /// True if a wait includes the work of GPUs.
    on_gpu: bool,
}

impl Work {
    /// Returns the work of the call in progress on this thread.
    pub(crate) fn new(ticket: Ticket<WorkValue>, generation: Generation) -> Self {
        Work { ticket, generation, on_gpu: gpu::take_operands() }
    }

    /// Waits for the outcome; `None` after the timeout.
    fn outcome(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<hexagram::Result<WorkValue>>> {
        self.generation.check(py)?;
        let began = Instant::now();
        let mut outcome = wait(py, timeout, |slice| self.ticket.wait(Some(slice)))?;
        if self.on_gpu
            && let Some(Ok(value)) = outcome
        {
            let left = timeout.map(|timeout| timeout - began.elapsed().as_secs_f64());
            outcome = finish_on_gpus(py, left)?.map(|finished| finished.map(|()| value));
        }
        elements_owner::sweep(py, self.generation);
        Ok(outcome)
    }

    /// Waits for the end and returns the result of the operation.
    pub(crate) fn finish(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.outcome(py, None) {
            Ok(Some(Ok(value))) => value.into_python(py),
            Ok(Some(Err(error))) => Err(exception(py, &error)),
            Ok(None) => Ok(py.None()),
            Err(interrupted) => {
                // The operation continues, so a thread must drop its objects.
                callbacks::start(py)?;
                Err(interrupted)
            }
        }
    }
}

#[pymethods]
impl Work {
    /// Waits until the operation has ended; returns false after `timeout` seconds, while the operation continues.
    ///
    /// Raises its error.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        match self.outcome(py, timeout)? {
            Some(Ok(_)) => Ok(true),
            Some(Err(error)) => Err(exception(py, &error)),
            None => Ok(false),
        }
    }

    /// Returns the result of the operation, after it has ended.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.finish(py)
    }

    /// Returns the source rank of a received message, if it has arrived; `None` for other operations.
    fn source(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        match self.outcome(py, None)? {
            Some(Ok(WorkValue::Rank(rank))) => Ok(Some(rank)),
            Some(Err(error)) => Err(exception(py, &error)),
            _ => Ok(None),
        }
    }

    /// Returns true if the operation has ended, successfully or not. A GPU may still be at work; `wait` waits for it.
    pub(crate) fn is_done(&self) -> bool {
        self.generation.is_now() && self.ticket.is_done()
    }

    /// Returns the error; `None` if there was no error, or the operation is in progress.
    fn exception(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        if !self.is_done() {
            return Ok(None);
        }
        match self.outcome(py, None)? {
            Some(Err(error)) => Ok(Some(exception(py, &error))),
            _ => Ok(None),
        }
    }

    /// Calls `callback(work)` on a thread of the package once the operation has ended.
    fn on_done(slf: Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        let py = slf.py();
        slf.get().generation.check(py)?;
        callbacks::start(py)?;
        let work = slf.clone().unbind();
        // Without the lock: if the operation has already ended, the callback is posted immediately.
        slf.get().ticket.on_done(Box::new(move || callbacks::post(callback, work)));
        Ok(())
    }
}

impl WorkValue {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            WorkValue::Nothing => Ok(py.None()),
            WorkValue::Rank(rank) => Ok(rank.into_pyobject(py)?.into_any().unbind()),
            WorkValue::Count(count) => Ok(count.into_pyobject(py)?.into_any().unbind()),
            WorkValue::Number(number) => Ok(number.into_pyobject(py)?.into_any().unbind()),
            WorkValue::Exchanged(mine, theirs) => Ok((mine, theirs).into_pyobject(py)?.into_any().unbind()),
            WorkValue::Pulled(clock, versions) => {
                Ok((clock, versions).into_pyobject(py)?.into_any().unbind())
            }
        }
    }
}

/// Waits until GPUs have completed all work on tensors of DLPack so far; `None` after the timeout.
///
/// # Errors
/// The first failure of this work, also of other operations; [`Error::System`](hexagram::Error::System) after the deadline
/// of the operations.
fn finish_on_gpus(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<hexagram::Result<()>>> {
    for queue in gpu::producers_queues() {
        let Some(device) = queue.device() else { continue };
        let event = device.record();
        let limit = timeout.unwrap_or_else(|| device.limit().as_secs_f64());
        if wait(py, Some(limit), |slice| event.wait(slice).then_some(()))?.is_none() {
            let cause = std::io::Error::from(std::io::ErrorKind::TimedOut);
            let doing = format!("finish the work of {} within {limit} s", queue.name());
            let remedy = "find the kernel that does not end, or raise the deadline";
            return Ok(timeout.is_none().then(|| Err(hexagram::Error::system(doing, cause, remedy))));
        }
        if let Err(error) = py.detach(|| queue.check()) {
            return Ok(Some(Err(error)));
        }
    }
    Ok(Some(Ok(())))
}

/// Waits for a job without a limit, and returns its result.
pub(crate) fn outcome<T: Clone + Send>(py: Python<'_>, ticket: &Ticket<T>) -> PyResult<T> {
    match wait(py, None, |slice| ticket.wait(Some(slice)))? {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(exception(py, &error)),
        None => Err(usage(py, "the wait for an operation has ended without it", "report it as a bug")),
    }
}

/// Waits without the interpreter lock, in slices with checks for signals; `None` after the timeout.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    mut slice: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    let began = Instant::now();
    let limit = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    loop {
        let left = limit.map_or(SLICE, |limit| limit.saturating_sub(began.elapsed()).min(SLICE));
        if let Some(outcome) = py.detach(|| slice(left)) {
            return Ok(Some(outcome));
        }
        py.check_signals()?;
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            return Ok(None);
        }
    }
}

/// Runs long work on a separate thread, so that Ctrl-C ends the wait for it, though not the work.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    interruptible_then(py, move || (work(), ()))
}

/// Runs work like `interruptible`, and ends the wait, though not the work, after `limit`, with an error that `what` has
/// not ended.
pub(crate) fn interruptible_within<T: Send + 'static>(
    py: Python<'_>,
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let ended = run_aside(py, Some(limit.as_secs_f64()), move || (work(), ()))?;
    ended.ok_or_else(|| late(py, what, limit))
}

/// Runs work like `interruptible`, and returns the first part of its result. The second part is dropped on that thread
/// afterwards, without a wait.
pub(crate) fn interruptible_then<T: Send + 'static, R: 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> (T, R) + Send + 'static,
) -> PyResult<T> {
    let ended = run_aside(py, None, work)?;
    ended.ok_or_else(|| usage(py, "the wait for a thread has ended without it", "report it as a bug"))
}

/// Runs work on a separate thread, and waits for the first part of its result; `None` after the timeout.
fn run_aside<T: Send + 'static, R: 'static>(
    py: Python<'_>,
    timeout: Option<f64>,
    work: impl FnOnce() -> (T, R) + Send + 'static,
) -> PyResult<Option<T>> {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("hexagram join".to_owned());
    let run = move || {
        let (done, rest) = work();
        drop(tell.send(done));
        drop(rest);
    };
    thread.spawn(run).map_err(|cause| {
        exception(
            py,
            &hexagram::Error::system("start a thread", cause, "raise the limit of threads (ulimit -u)"),
        )
    })?;
    let told = std::sync::Mutex::new(told);
    let ended = wait(py, timeout, |slice| {
        let told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match told.recv_timeout(slice) {
            Ok(done) => Some(Some(done)),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => None,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => Some(None),
        }
    })?;
    match ended {
        Some(None) => Err(usage(py, "a thread of hexagram panicked", "see its own message")),
        ended => Ok(ended.flatten()),
    }
}
