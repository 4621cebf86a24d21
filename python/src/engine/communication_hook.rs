//! The hook of PyTorch's `DistributedDataParallel`: an algorithm on the gradient buckets of DDP.

use super::answer;
use super::state::{Given, RecordBytes, SavedRecord};
use crate::communicator::Communicator;
use crate::error::exception;
use crate::fork::Generation;
use crate::memory::lent_to_write;
use crate::work::interruptible;
use hexagram::Error;
use hexagram::algorithms::engine::{CommunicationHook as Hook, FrameworkBucket, HookOptions};
use hexagram::algorithms::registry;
use pyo3::prelude::*;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

/// Algorithm on the gradient buckets of a framework.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct CommunicationHook {
    generation: Generation,
    /// The hook; `None` after it was closed.
    hook: Arc<Mutex<Option<Hook>>>,
}

/// A bucket: index, whether it is the last, gradients, and the names and shapes of the tensors.
type BucketTuple<'py> = (usize, bool, Bound<'py, PyAny>, Vec<(String, Vec<usize>)>);

#[pymethods]
impl CommunicationHook {
    #[new]
    fn new(
        py: Python<'_>,
        group: &Communicator,
        algorithm: &str,
        seed: u64,
        hierarchical: bool,
        learning_rate: Option<f64>,
    ) -> PyResult<Self> {
        let channel = group.channel(py)?;
        let algorithm = registry::named(algorithm).map_err(|error| exception(py, &error))?;
        let options =
            HookOptions { seed, hierarchical, learning_rate, skip_overflows: true, ..HookOptions::default() };
        let made = interruptible(py, move || {
            let comm = channel.open()?;
            Hook::new(&comm, algorithm, options)
        })?;
        let hook = made.map_err(|error| exception(py, &error))?;
        Ok(CommunicationHook { generation: Generation::now(), hook: Arc::new(Mutex::new(Some(hook))) })
    }

    fn set_learning_rate(&self, rate: f64) {
        if let Some(hook) = &mut *self.hook.lock().unwrap_or_else(PoisonError::into_inner) {
            hook.set_learning_rate(rate);
        }
    }

    /// Takes a bucket; the call with the last bucket of a pass waits for the hooks of all.
    fn ready(&self, py: Python<'_>, bucket: BucketTuple<'_>) -> PyResult<()> {
        self.generation.check(py)?;
        let (index, is_last, gradients, tensors) = bucket;
        let tensors = tensors.into_iter().map(|(name, shape)| (Arc::from(name), shape)).collect();
        let bucket = FrameworkBucket { index, is_last, gradients: lent_to_write(&gradients)?, tensors };
        if !is_last {
            return py.detach(|| taken(&self.hook, bucket)).map_err(|error| exception(py, &error));
        }
        let (tell, told) = channel();
        let hook = Arc::clone(&self.hook);
        let wait = move || drop(tell.send(taken(&hook, bucket)));
        std::thread::Builder::new().name("hexagram-hook".to_owned()).spawn(wait).map_err(|cause| {
            exception(py, &Error::system("start a thread", cause, "raise the limit of threads (ulimit -u)"))
        })?;
        answer(py, told)
    }

    /// Returns the state of the algorithm, between passes.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<SavedRecord<'py>> {
        self.generation.check(py)?;
        let saved = py.detach(|| used(&self.hook, |hook| RecordBytes::of(&hook.save()?)));
        Ok(saved.map_err(|error| exception(py, &error))?.told(py))
    }

    /// Continues from a state of [`CommunicationHook::save`], before the first pass.
    fn load(&self, py: Python<'_>, saved: Given<'_>) -> PyResult<()> {
        self.generation.check(py)?;
        let record = saved.record().map_err(|error| exception(py, &error))?;
        py.detach(|| used(&self.hook, |hook| hook.load(record))).map_err(|error| exception(py, &error))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let hook = Arc::clone(&self.hook);
        interruptible(py, move || drop(hook.lock().unwrap_or_else(PoisonError::into_inner).take()))
    }
}

/// Hands a bucket to the hook.
fn taken(hook: &Mutex<Option<Hook>>, bucket: FrameworkBucket) -> hexagram::Result<()> {
    used(hook, |hook| hook.ready(bucket).map(drop))
}

/// Calls a method of the hook, unless it was closed.
fn used<R>(
    hook: &Mutex<Option<Hook>>,
    call: impl FnOnce(&mut Hook) -> hexagram::Result<R>,
) -> hexagram::Result<R> {
    let mut hook = hook.lock().unwrap_or_else(PoisonError::into_inner);
    let closed = || Error::usage("this hook was closed", "make another one");
    call(hook.as_mut().ok_or_else(closed)?)
}
