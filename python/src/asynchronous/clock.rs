//! The staleness clock: who may go on, when nobody may be more than some steps ahead of the slowest.

use super::home::Home;
use crate::communicator::{Call, Comm, Communicator, Returned};
use crate::work::Value;
use hexagram::asynchronous;
use pyo3::prelude::*;
use std::sync::Arc;

/// Clock of stale synchronous parallelism: no rank is more than `staleness` clocks ahead of the slowest.
///
/// A clock that is dropped has finished: nobody waits for its rank any more. See `Service.clock`.
#[pyclass(frozen, module = "hexagram.asynchronous")]
pub(crate) struct Clock {
    all: Communicator,
    home: Arc<Home<asynchronous::Clock>>,
}

#[pymethods]
impl Clock {
    /// Returns this rank's clock: the number of its ticks.
    #[getter]
    fn now(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.now())
    }

    /// Returns the slowest rank's clock, as far as this rank knows.
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

    /// Ends this clock of this rank; returns the number of the next. Tells nobody, and does not wait.
    fn tick(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.tick())
    }

    /// Waits until the slowest rank is at most `staleness` clocks behind; returns how far it has come at least.
    ///
    /// Raises `DeadlineExceeded` with the rank that is late, `PeerFailed` with the one that failed.
    #[pyo3(signature = (*, async_op = false))]
    fn wait(&self, py: Python<'_>, async_op: bool) -> Returned {
        let clock = self.get(py)?;
        let call = Call { what: "wait", async_op, timeout: None };
        self.all.run_at_once(py, call, async move |_: &Comm| clock.wait().await.map(Value::Count))
    }

    /// Waits until every rank has come as far as this one: before what all have made is evaluated or saved.
    #[pyo3(signature = (*, async_op = false))]
    fn settle(&self, py: Python<'_>, async_op: bool) -> Returned {
        let clock = self.get(py)?;
        let call = Call { what: "settle", async_op, timeout: None };
        self.all.run_at_once(py, call, async move |_: &Comm| clock.settle().await.map(Value::Count))
    }

    /// Says that this rank ticks no more: nobody waits for it any more.
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
    pub(super) fn new(all: Communicator, home: Arc<Home<asynchronous::Clock>>) -> Self {
        Clock { all, home }
    }

    pub(super) fn get(&self, py: Python<'_>) -> PyResult<Arc<asynchronous::Clock>> {
        self.home.get(py)
    }
}
