//! The staleness clock: a rank waits if it is too many steps ahead of the slowest.

use super::closable_owner::ClosableOwner;
use crate::communicator::{CallOptions, CallResult, Communicator, InnerCommunicator};
use crate::work::WorkValue;
use hexagram::asynchronous;
use pyo3::prelude::*;
use std::sync::Arc;

/// Clock of stale synchronous parallelism: no rank is more than `staleness` clocks ahead of the slowest.
///
/// A dropped clock has finished: no rank waits for it any more. See `Service.clock`.
#[pyclass(frozen, module = "hexagram.asynchronous")]
pub(crate) struct Clock {
    all: Communicator,
    home: Arc<ClosableOwner<asynchronous::Clock>>,
}

#[pymethods]
impl Clock {
    /// Returns the clock of this rank: the number of its ticks.
    #[getter]
    fn now(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.now())
    }

    /// Returns the clock of the slowest rank, as known to this rank.
    #[getter]
    fn slowest(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.slowest())
    }

    /// Returns the number of clocks that a rank may be ahead of the slowest; `None` if there is no bound.
    #[getter]
    fn staleness(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let staleness = self.get(py)?.staleness();
        Ok((staleness != asynchronous::Clock::UNBOUNDED).then_some(staleness))
    }

    /// Advances the clock of this rank; returns the new number. Neither sends a message nor waits.
    fn tick(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.tick())
    }

    /// Waits until the slowest rank is at most `staleness` clocks behind; returns a lower bound of its clock.
    ///
    /// Raises `DeadlineExceeded` with the rank that is late, or `PeerFailed` with the rank that failed.
    #[pyo3(signature = (*, async_op = false))]
    fn wait(&self, py: Python<'_>, async_op: bool) -> CallResult {
        let clock = self.get(py)?;
        let call = CallOptions { what: "wait", async_op, timeout: None };
        self.all.run_at_once(py, call, async move |_: &InnerCommunicator| {
            clock.wait().await.map(WorkValue::Count)
        })
    }

    /// Waits until every rank has reached the clock of this one: call it before evaluating or saving.
    #[pyo3(signature = (*, async_op = false))]
    fn settle(&self, py: Python<'_>, async_op: bool) -> CallResult {
        let clock = self.get(py)?;
        let call = CallOptions { what: "settle", async_op, timeout: None };
        self.all.run_at_once(py, call, async move |_: &InnerCommunicator| {
            clock.settle().await.map(WorkValue::Count)
        })
    }

    /// Marks this rank as finished: no rank waits for its clock any more.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.get(py)?.finish();
        Ok(())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.get(py) {
            Ok(clock) => format!("Clock({} of rank {})", clock.now(), self.all.rank()),
            Err(_) => "Clock(closed)".to_owned(),
        }
    }
}

impl Clock {
    pub(super) fn new(all: Communicator, home: Arc<ClosableOwner<asynchronous::Clock>>) -> Self {
        Clock { all, home }
    }

    pub(super) fn get(&self, py: Python<'_>) -> PyResult<Arc<asynchronous::Clock>> {
        self.home.get(py)
    }
}
