//! Windows: memory of a rank into which its neighbours write, and from which they read, while it computes.

use super::home::Home;
use crate::communicator::{Argument, Call, Comm, Communicator, Returned, nothing};
use crate::error::exception;
use crate::memory::Operand;
use crate::state::{Saved, dictionary};
use crate::whole::ranks;
use hexagram::{Result, asynchronous};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One rank's part of a window: its own value x with its scalar p (1 at first), and a buffer y with a scalar q (0 at
/// first) for each rank that may put into it.
///
/// No rank's program takes part in what others do with its window. See `Service.window`.
#[pyclass(frozen, module = "hexagram.asynchronous")]
pub(crate) struct Window {
    all: Communicator,
    home: Arc<Home<asynchronous::Window>>,
    sources: Vec<usize>,
}

/// Ranks, each with its weight or with one that is usual.
#[derive(FromPyObject)]
pub(super) enum Peers<'py> {
    Weighted(Bound<'py, PyDict>),
    Ranks(Vec<usize>),
}

#[pymethods]
impl Window {
    /// Returns the ranks that this one may put to.
    #[getter]
    fn destinations(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.home.get(py)?.destinations())
    }

    /// Returns the ranks that may put into this one's part.
    #[getter]
    fn sources(&self) -> Vec<usize> {
        self.sources.clone()
    }

    /// Returns the push-sum scalar p.
    #[getter]
    fn mass(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.home.get(py)?.mass())
    }

    /// Returns how often the buffer of rank `source` was written to, by either side; `None` if it is no source.
    fn version(&self, py: Python<'_>, #[pyo3(from_py_with = ranks)] source: usize) -> PyResult<Option<u64>> {
        Ok(self.home.get(py)?.version(source))
    }

    /// Puts x into the buffers of `to`, a dictionary of weights by rank, or ranks (weight 1): y ← w x and q ← w p there.
    /// Then x ← `self_weight` x here, and p as well. Without `to`, all destinations.
    ///
    /// Raises `UsageError` for ranks that are no destinations, `NotFinite` where the codec refuses x.
    ///
    /// >>> window.put({1: 0.5, 3: 0.5})  # doctest: +SKIP
    #[pyo3(signature = (to = None, self_weight = 1.0, *, async_op = false))]
    fn put(&self, py: Python<'_>, to: Option<Peers<'_>>, self_weight: f64, async_op: bool) -> Returned {
        let window = self.home.get(py)?;
        let to = weights(to, || window.destinations(), 1.0)?;
        self.run(py, "put", async_op, async move || window.put(self_weight, &to).await)
    }

    /// Adds x to the buffers of `to`: as `put`, with y ← y + w x and q ← q + w p. By default x is divided equally among
    /// this rank and its destinations, which keeps the sum over all ranks.
    #[pyo3(signature = (to = None, self_weight = None, *, async_op = false))]
    fn accumulate(
        &self,
        py: Python<'_>,
        to: Option<Peers<'_>>,
        self_weight: Option<f64>,
        async_op: bool,
    ) -> Returned {
        let window = self.home.get(py)?;
        let share = 1.0 / (window.destinations().len() + 1) as f64;
        let to = weights(to, || window.destinations(), share)?;
        let rest = 1.0 - to.iter().map(|(_, weight)| weight).sum::<f64>();
        let self_weight = self_weight.unwrap_or(rest);
        self.run(py, "accumulate", async_op, async move || window.accumulate(self_weight, &to).await)
    }

    /// Fetches the values of `sources`, a dictionary of weights by rank, or ranks (weight 1): y ← w x and q ← w p here.
    /// Without it, all sources.
    #[pyo3(signature = (sources = None, *, async_op = false))]
    fn get(&self, py: Python<'_>, sources: Option<Peers<'_>>, async_op: bool) -> Returned {
        let window = self.home.get(py)?;
        let from = weights(sources, || self.sources.clone(), 1.0)?;
        self.run(py, "get", async_op, async move || window.get(&from).await)
    }

    /// Combines what has arrived: x ← `self_weight` x + Σ w y, and p as well, over a dictionary of weights by rank. By
    /// default the mean of x and all y. With `reset` these y and q are 0 afterwards. Sends nothing.
    #[pyo3(signature = (sources = None, self_weight = None, *, reset = false))]
    fn update(
        &self,
        py: Python<'_>,
        sources: Option<Peers<'_>>,
        self_weight: Option<f64>,
        reset: bool,
    ) -> Returned {
        let window = self.home.get(py)?;
        let share = 1.0 / (self.sources.len() + 1) as f64;
        let from = weights(sources, || self.sources.clone(), share)?;
        let rest = 1.0 - from.iter().map(|(_, weight)| weight).sum::<f64>();
        let self_weight = self_weight.unwrap_or(rest);
        self.run(py, "update", false, async move || window.update(self_weight, &from, reset).await)
    }

    /// Takes in all that has been accumulated: x ← x + Σ y and p ← p + Σ q, and 0 is left of these.
    fn collect(&self, py: Python<'_>) -> Returned {
        let window = self.home.get(py)?;
        self.run(py, "collect", false, async move || window.collect().await)
    }

    /// Copies this rank's value x into elements of its type and length.
    fn load(&self, into: Argument) -> Returned {
        let window = self.home.get(into.py())?;
        let mut buffer = Operand::output(into)?;
        self.run(into.py(), "load", false, async move || window.load(&mut buffer).await)
    }

    /// Computes push-sum's estimate of the mean, x ÷ p, into elements of its type and length. Raises `UsageError` if p is 0.
    fn estimate(&self, into: Argument) -> Returned {
        let window = self.home.get(into.py())?;
        let mut buffer = Operand::output(into)?;
        self.run(into.py(), "estimate", false, async move || window.estimate(&mut buffer).await)
    }

    /// Copies the buffer y of rank `source` into elements of its type and length.
    fn load_neighbour(&self, #[pyo3(from_py_with = ranks)] source: usize, into: Argument) -> Returned {
        let window = self.home.get(into.py())?;
        let mut buffer = Operand::output(into)?;
        self.run(into.py(), "load_neighbour", false, async move || {
            window.load_neighbour(source, &mut buffer).await
        })
    }

    /// Replaces this rank's value x; p stays as it is.
    fn store(&self, value: Argument) -> Returned {
        let window = self.home.get(value.py())?;
        let buffer = Operand::input(value)?;
        self.run(value.py(), "store", false, async move || window.store(&buffer).await)
    }

    /// Adds to this rank's value: x ← x + weight · elements.
    #[pyo3(signature = (elements, weight = 1.0))]
    fn add(&self, elements: Argument, weight: f64) -> Returned {
        let window = self.home.get(elements.py())?;
        let buffer = Operand::input(elements)?;
        self.run(elements.py(), "add", false, async move || window.add(weight, &buffer).await)
    }

    /// Returns everything that this rank's part holds and remembers, to be pickled. Save on all ranks when nothing is on
    /// its way: after a barrier.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let window = self.home.get(py)?;
        states(py, py.detach(|| window.blocking().save()))
    }

    /// Goes on where `state_dict` was called, in a window that was made alike; on all ranks, before anything is sent.
    fn load_state_dict(&self, py: Python<'_>, state: BTreeMap<String, Saved>) -> PyResult<()> {
        let window = self.home.get(py)?;
        let states = restored(py, state)?;
        py.detach(|| window.blocking().restore(states)).map_err(|error| exception(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("Window(rank {}, sources {:?})", self.all.rank(), self.sources)
    }
}

impl Window {
    pub(super) fn new(all: Communicator, home: Arc<Home<asynchronous::Window>>, sources: Vec<usize>) -> Self {
        Window { all, home, sources }
    }

    fn run(
        &self,
        py: Python<'_>,
        what: &'static str,
        async_op: bool,
        work: impl AsyncFnOnce() -> Result<()> + Send + 'static,
    ) -> Returned {
        let call = Call { what, async_op, timeout: None };
        self.all.run_at_once(py, call, async move |_: &Comm| nothing(work().await))
    }
}

/// Returns ranks with their weights; those without have `usual`.
fn weights(
    peers: Option<Peers<'_>>,
    all: impl FnOnce() -> Vec<usize>,
    usual: f64,
) -> PyResult<Vec<(usize, f64)>> {
    let ranks = match peers {
        Some(Peers::Weighted(weights)) => {
            return weights.iter().map(|(rank, weight)| Ok((rank.extract()?, weight.extract()?))).collect();
        }
        Some(Peers::Ranks(ranks)) => ranks,
        None => all(),
    };
    Ok(ranks.into_iter().map(|rank| (rank, usual)).collect())
}

/// Returns named states as a dictionary.
pub(super) fn states<'py>(
    py: Python<'py>,
    saved: Result<Vec<(String, hexagram::encoding::State)>>,
) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (name, state) in saved.map_err(|error| exception(py, &error))? {
        all.set_item(name, dictionary(py, &state)?)?;
    }
    Ok(all)
}

/// Returns the states of a dictionary.
pub(super) fn restored(
    py: Python<'_>,
    saved: BTreeMap<String, Saved>,
) -> PyResult<Vec<(String, hexagram::encoding::State)>> {
    saved.into_iter().map(|(name, saved)| Ok((name, saved.state(py)?))).collect()
}
