//! Iteration over batches: how Python waits for one, and what becomes of the workers.

use super::error::exception;
use super::options::{Fetched, Keywords, Object, collated};
use crate::error::usage;
use crate::fork::Generation;
use crate::work::wait;
use hexagram::DataLoader;
use hexagram::sampler::loader::{LoaderError, LoaderState};
use pyo3::prelude::*;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Batches of a data set, epoch after epoch. `hexagram.loader.DataLoader` stands on it.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct Loader(Arc<Open>);

/// One epoch of a loader.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct Batches {
    running: Arc<Open>,
    /// Number of the epochs that were begun before.
    turn: u64,
}

/// A loader until it is closed.
struct Open {
    generation: Generation,
    /// Never locked by who has the interpreter's lock: the workers may want that.
    state: Mutex<State>,
}

struct State {
    /// `None` once it was closed.
    loader: Option<DataLoader<Object>>,
    /// Number of epochs that were begun.
    turns: u64,
}

/// Loaders that may still have workers as the interpreter ends.
static LOADERS: Mutex<Vec<Weak<Open>>> = Mutex::new(Vec::new());

/// Ends the workers of all loaders, as the interpreter ends.
pub(crate) fn end_all(py: Python<'_>) {
    let loaders = std::mem::take(&mut *LOADERS.lock().unwrap_or_else(PoisonError::into_inner));
    py.detach(|| loaders.iter().filter_map(Weak::upgrade).for_each(|loader| loader.close()));
}

#[pymethods]
impl Loader {
    #[new]
    fn new(
        py: Python<'_>,
        fetch: Py<PyAny>,
        len: usize,
        collate: Py<PyAny>,
        options: Keywords<'_>,
    ) -> PyResult<Self> {
        let options = options.read(py)?;
        let assemble = move |samples, _: &_| collated(&collate, samples);
        let made = DataLoader::with_collate(Fetched { fetch, len }, options, assemble);
        let loader = Some(made.map_err(|error| exception(py, &error))?);
        let state = Mutex::new(State { loader, turns: 0 });
        let running = Arc::new(Open { generation: Generation::now(), state });
        let mut loaders = LOADERS.lock().unwrap_or_else(PoisonError::into_inner);
        loaders.retain(|loader| loader.strong_count() > 0);
        loaders.push(Arc::downgrade(&running));
        drop(loaders);
        Ok(Loader(running))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |loader| loader.len().unwrap_or(0))
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Batches> {
        self.0.with(py, DataLoader::begin)?;
        let turn = py.detach(|| {
            let mut state = self.0.lock();
            state.turns += 1;
            state.turns
        });
        Ok(Batches { running: Arc::clone(&self.0), turn })
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.0.with(py, |loader| loader.set_epoch(epoch))
    }

    #[getter]
    fn skipped(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.with(py, |loader| loader.skipped())
    }

    /// Returns seed, epoch, position and order.
    fn state(&self, py: Python<'_>) -> PyResult<(u64, u64, usize, u64)> {
        self.0.with(py, |loader| {
            let LoaderState { seed, epoch, position, order } = loader.state();
            (seed, epoch, position, order)
        })
    }

    fn resume(&self, py: Python<'_>, state: (u64, u64, usize, u64)) -> PyResult<()> {
        let (seed, epoch, position, order) = state;
        let resumed =
            self.0.with(py, |loader| loader.resume(&LoaderState { seed, epoch, position, order }))?;
        resumed.map_err(|error| exception(py, &error))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

#[pymethods]
impl Batches {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Object>> {
        self.running.generation.check(py)?;
        let ring = Arc::new(Ring::default());
        let waker = Waker::from(Arc::clone(&ring));
        let next = wait(py, None, |slice| {
            match self.running.lock().poll(self.turn, &waker) {
                Poll::Ready(next) => return Some(next),
                Poll::Pending => {}
            }
            ring.wait(slice);
            None
        })?;
        match next.flatten() {
            Some(Ok(batch)) => Ok(Some(batch)),
            Some(Err(error)) => Err(exception(py, &error)),
            None => Ok(None),
        }
    }
}

impl State {
    /// Polls for the next batch of an epoch; none if another one was begun, or the loader was closed.
    fn poll(&mut self, turn: u64, waker: &Waker) -> Poll<Option<Result<Object, LoaderError>>> {
        match &mut self.loader {
            Some(loader) if turn == self.turns => loader.poll_next(&mut Context::from_waker(waker)),
            _ => Poll::Ready(None),
        }
    }
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the loader, without the interpreter's lock. Fails once it was closed, and in a forked child.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut DataLoader<Object>) -> T + Send,
    ) -> PyResult<T> {
        self.generation.check(py)?;
        let done = py.detach(|| self.lock().loader.as_mut().map(run));
        done.ok_or_else(|| usage(py, "this loader is closed", "make another one"))
    }

    /// Ends the workers. Called without the interpreter's lock.
    fn close(&self) {
        if self.generation.is_now() {
            let loader = self.lock().loader.take();
            drop(loader);
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        if !self.running.generation.is_now() {
            return;
        }
        Python::try_attach(|py| {
            py.detach(|| {
                let mut state = self.running.lock();
                if state.turns == self.turn
                    && let Some(loader) = &mut state.loader
                {
                    loader.end();
                }
            });
        });
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(loader) = self.lock().loader.take() else { return };
        if !self.generation.is_now() {
            // Its workers are the parent's.
            return std::mem::forget(loader);
        }
        let mut loader = Some(loader);
        Python::try_attach(|py| py.detach(|| drop(loader.take())));
        // As the interpreter ends workers could wait for it in vain.
        std::mem::forget(loader);
    }
}

/// Rung when a batch has come.
#[derive(Default)]
struct Ring {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Ring {
    /// Waits until it is rung, at most for `limit`.
    fn wait(&self, limit: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(rung, limit, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}
