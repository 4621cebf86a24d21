//! Averages in the background: the mean over ranks of a snapshot, while this rank continues its computation.

use super::closable_owner::ClosableOwner;
use crate::communicator::{CallOptions, Communicator, ElementsArgument, InnerCommunicator};
use crate::encoding::Encoding;
use crate::error::{exception, usage};
use crate::memory::Operand;
use crate::work::{Work, WorkValue, interruptible};
use crate::world::{Closes, World};
use hexagram::{Buffer, ReduceOp, Result, asynchronous};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// Background thread of this rank that averages over ranks. See `World.background`.
#[pyclass(frozen, module = "hexagram.asynchronous")]
pub(crate) struct Background {
    all: Communicator,
    home: Arc<ClosableOwner<SharedBackground>>,
}

type SharedBackground = Mutex<asynchronous::Background>;

/// A mean in progress, to apply to its elements.
///
/// With s the snapshot and r its mean over ranks, `apply` does x ← (x − s) + r: values added to x meanwhile are kept.
#[pyclass(frozen, module = "hexagram.asynchronous")]
pub(crate) struct Average {
    work: Py<Work>,
    elements: Py<PyAny>,
    found: Arc<Mutex<MeanProgress>>,
}

/// Progress of an average.
enum MeanProgress {
    Nothing,
    /// All ranks agreed not to begin it.
    Aborted,
    Mean {
        snapshot: Buffer,
        mean: Buffer,
    },
    Applied,
}

impl Closes for ClosableOwner<SharedBackground> {
    fn close(&self) -> Result<()> {
        // Waits for averages in progress.
        drop(self.take());
        Ok(())
    }
}

#[pymethods]
impl World {
    /// Starts a background thread that averages over ranks. A collective call.
    ///
    /// >>> parameters = numpy.ones(3)
    /// >>> background = world.background()
    /// >>> average = background.mean(parameters)
    /// >>> parameters += 1  # compute meanwhile
    /// >>> average.apply()
    /// True
    fn background(&self, py: Python<'_>) -> PyResult<Background> {
        let all = self.all();
        let start = async |comm: &InnerCommunicator| asynchronous::Background::start(comm).await;
        let made = all.make(py, "background", start)?;
        let home = ClosableOwner::new("background thread", Mutex::new(made));
        self.member().keep(Arc::clone(&home) as Arc<dyn Closes>);
        Ok(Background { all, home })
    }
}

/// Returns the elements of an argument for writing a mean.
fn floats(elements: ElementsArgument) -> PyResult<Operand> {
    let operand = Operand::output(elements)?;
    if operand.dtype().is_float() {
        return Ok(operand);
    }
    let what = format!("the mean of {} is not a {}", operand.dtype(), operand.dtype());
    Err(usage(elements.py(), what, "use a float type"))
}

#[pymethods]
impl Background {
    /// Copies the elements, floats, and begins their mean over all ranks; with an encoding, of f32 in low precision.
    /// All ranks must begin the same means in the same order. Begin the next mean of the same elements only after the
    /// last was applied.
    ///
    /// Raises `UsageError` unless the elements are floats, and for read-only elements.
    #[pyo3(signature = (elements, encoding = None))]
    fn mean(&self, elements: ElementsArgument, encoding: Option<&Encoding>) -> PyResult<Average> {
        let py = elements.py();
        let running = self.home.get(py)?;
        let operand = floats(elements)?;
        let slot = encoding.map(Encoding::slot);
        let pending = py.detach(|| {
            let snapshot = operand.copied()?;
            drop(operand);
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(running.call(async move |comm: &InnerCommunicator| {
                let mut mean = snapshot.copied()?;
                match slot {
                    None => comm.all_reduce(&mut mean, ReduceOp::Mean).await?,
                    Some(slot) => {
                        let reduce = async |encoding: &mut _| {
                            comm.all_reduce_encoded(&mut mean, ReduceOp::Mean, encoding).await
                        };
                        slot.lend(reduce).await?;
                    }
                }
                Ok((snapshot, mean))
            }))
        });
        let pending = pending.map_err(|error: hexagram::Error| exception(py, &error))?;
        let found = Arc::new(Mutex::new(MeanProgress::Nothing));
        let told = Arc::clone(&found);
        let call = CallOptions { what: "mean", async_op: true, timeout: None };
        let work = self.all.run_at_once(py, call, async move |_: &InnerCommunicator| {
            let found = match pending.await? {
                Some((snapshot, mean)) => MeanProgress::Mean { snapshot, mean },
                None => MeanProgress::Aborted,
            };
            *told.lock().unwrap_or_else(PoisonError::into_inner) = found;
            Ok(WorkValue::Nothing)
        })?;
        let work = work.bind(py).cast::<Work>()?.clone().unbind();
        Ok(Average { work, elements: elements.clone().unbind(), found })
    }

    /// Cancels the averages that no rank has begun. A collective call, after any number of averages on each rank; later
    /// averages run as usual.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.home.get(py)?;
        let aborted = interruptible(py, move || {
            running.lock().unwrap_or_else(PoisonError::into_inner).blocking().abort()
        })?;
        aborted.map_err(|error| exception(py, &error))
    }

    /// Waits for the averages in progress, and ends the thread. A collective call.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.all.member().close(py, Arc::clone(&self.home) as Arc<dyn Closes>)
    }

    fn __repr__(&self) -> String {
        format!("Background(rank {})", self.all.rank())
    }
}

#[pymethods]
impl Average {
    /// Returns true if the mean is complete, or has failed.
    fn is_done(&self) -> bool {
        self.work.get().is_done()
    }

    /// Waits until the mean is complete; returns false after `timeout` seconds. Raises the error of the mean.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.work.get().wait(py, timeout)
    }

    /// Waits for the mean, and adds its difference from the snapshot to the elements. No other thread may change them
    /// meanwhile. Returns false, without an effect, if all ranks have aborted the mean.
    ///
    /// Raises the error of the mean, and `UsageError` if it was applied before.
    fn apply(&self, py: Python<'_>) -> PyResult<bool> {
        self.work.get().wait(py, None)?;
        let found = std::mem::replace(
            &mut *self.found.lock().unwrap_or_else(PoisonError::into_inner),
            MeanProgress::Applied,
        );
        match found {
            MeanProgress::Mean { snapshot, mean } => {
                let elements = Operand::output(self.elements.bind(py))?;
                let applied = py.detach(|| {
                    let mut x = elements.write_all()?;
                    x.add_scaled(-1.0, &snapshot.read_all()?)?;
                    x.add_scaled(1.0, &mean.read_all()?)
                });
                applied.map(|()| true).map_err(|error| exception(py, &error))
            }
            MeanProgress::Aborted => Ok(false),
            MeanProgress::Nothing | MeanProgress::Applied => {
                Err(usage(py, "this mean was applied before", "begin another one"))
            }
        }
    }

    fn __repr__(&self) -> String {
        format!("Average({})", if self.is_done() { "done" } else { "under way" })
    }
}
