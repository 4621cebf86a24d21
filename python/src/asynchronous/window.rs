//! Windows: memory of a rank that its neighbours write and read while it computes.

use super::closable_owner::ClosableOwner;
use crate::communicator::{
    CallOptions, CallResult, Communicator, ElementsArgument, InnerCommunicator, nothing,
};
use crate::error::exception;
use crate::memory::Operand;
use crate::values::state::{SavedEncoding, dictionary};
use crate::values::whole::ranks;
use hexagram::{Result, asynchronous};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The part of a window on one rank: its own value x with its scalar p (1 at first), and a buffer y with a scalar q (0
/// at first) for each rank that may put into it.
///
/// The program of a rank does not participate in accesses of others to its window. See `Service.window`.
#[pyclass(frozen, module = "hexagram.asynchronous")]
pub(crate) struct Window {
    all: Communicator,
    home: Arc<ClosableOwner<asynchronous::Window>>,
    sources: Vec<usize>,
}

/// Ranks, each with its weight or a default.
#[derive(FromPyObject)]
pub(super) enum WindowPeers<'py> {
    Weighted(Bound<'py, PyDict>),
    Ranks(Vec<usize>),
}

#[pymethods]
impl Window {
    /// Returns the ranks to which this one may put.
    #[getter]
    fn destinations(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.home.get(py)?.destinations())
    }

    /// Returns the ranks that may put into the part of this one.
    #[getter]
    fn sources(&self) -> Vec<usize> {
        self.sources.clone()
    }

    /// Returns the push-sum scalar p.
    #[getter]
    fn mass(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.home.get(py)?.mass())
    }

    /// Returns how often the buffer of rank `source` was written, by either side; `None` if it is not a source.
    fn version(&self, py: Python<'_>, #[pyo3(from_py_with = ranks)] source: usize) -> PyResult<Option<u64>> {
        Ok(self.home.get(py)?.version(source))
    }

    /// Puts x into the buffers of `to`, a dictionary of weights by rank, or ranks (weight 1): y ← w x and q ← w p
    /// there. Then x ← `self_weight` x here, and the same for p. Default of `to`: all destinations.
    ///
    /// Raises `UsageError` for ranks that are not destinations, `NotFinite` if the codec refuses x.
    ///
    /// >>> window.put({1: 0.5, 3: 0.5})  # doctest: +SKIP
    #[pyo3(signature = (to = None, self_weight = 1.0, *, async_op = false))]
    fn put(
        &self,
        py: Python<'_>,
        to: Option<WindowPeers<'_>>,
        self_weight: f64,
        async_op: bool,
    ) -> CallResult {
        let window = self.home.get(py)?;
        let to = weights(to, || window.destinations(), 1.0)?;
        self.run(py, "put", async_op, async move || window.put(self_weight, &to).await)
    }

    /// Adds x to the buffers of `to`: like `put`, with y ← y + w x and q ← q + w p. By default x is divided equally
    /// among this rank and its destinations, which preserves the sum over all ranks.
    #[pyo3(signature = (to = None, self_weight = None, *, async_op = false))]
    fn accumulate(
        &self,
        py: Python<'_>,
        to: Option<WindowPeers<'_>>,
        self_weight: Option<f64>,
        async_op: bool,
    ) -> CallResult {
        let window = self.home.get(py)?;
        let share = 1.0 / (window.destinations().len() + 1) as f64;
        let to = weights(to, || window.destinations(), share)?;
        let rest = 1.0 - to.iter().map(|(_, weight)| weight).sum::<f64>();
        let self_weight = self_weight.unwrap_or(rest);
        self.run(py, "accumulate", async_op, async move || window.accumulate(self_weight, &to).await)
    }

    /// Fetches the values of `sources`, a dictionary of weights by rank, or ranks (weight 1): y ← w x and q ← w p here.
    /// Default: all sources.
    #[pyo3(signature = (sources = None, *, async_op = false))]
    fn get(&self, py: Python<'_>, sources: Option<WindowPeers<'_>>, async_op: bool) -> CallResult {
        let window = self.home.get(py)?;
        let from = weights(sources, || self.sources.clone(), 1.0)?;
        self.run(py, "get", async_op, async move || window.get(&from).await)
    }

    /// Combines the buffers: x ← `self_weight` x + Σ w y, and the same for p, over a dictionary of weights by rank. By
    /// default the mean of x and all y. With `reset`, these y and q are set to 0 afterwards. Sends nothing.
    #[pyo3(signature = (sources = None, self_weight = None, *, reset = false))]
    fn update(
        &self,
        py: Python<'_>,
        sources: Option<WindowPeers<'_>>,
        self_weight: Option<f64>,
        reset: bool,
    ) -> CallResult {
        let window = self.home.get(py)?;
        let share = 1.0 / (self.sources.len() + 1) as f64;
        let from = weights(sources, || self.sources.clone(), share)?;
        let rest = 1.0 - from.iter().map(|(_, weight)| weight).sum::<f64>();
        let self_weight = self_weight.unwrap_or(rest);
        self.run(py, "update", false, async move || window.update(self_weight, &from, reset).await)
    }

    /// Moves all accumulated values: x ← x + Σ y and p ← p + Σ q, then y and q are set to 0.
    fn collect(&self, py: Python<'_>) -> CallResult {
        let window = self.home.get(py)?;
        self.run(py, "collect", false, async move || window.collect().await)
    }

    /// Copies the value x of this rank into elements of its type and length.
    fn load(&self, into: ElementsArgument) -> CallResult {
        let window = self.home.get(into.py())?;
        let mut buffer = Operand::output(into)?;
        self.run(into.py(), "load", false, async move || window.load(&mut buffer).await)
    }

    /// Computes the push-sum estimate of the mean, x ÷ p, into elements of its type and length. Raises `UsageError` if
    /// p is 0.
    fn estimate(&self, into: ElementsArgument) -> CallResult {
        let window = self.home.get(into.py())?;
        let mut buffer = Operand::output(into)?;
        self.run(into.py(), "estimate", false, async move || window.estimate(&mut buffer).await)
    }

    /// Copies the buffer y of rank `source` into elements of its type and length.
    fn load_neighbour(
        &self,
        #[pyo3(from_py_with = ranks)] source: usize,
        into: ElementsArgument,
    ) -> CallResult {
        let window = self.home.get(into.py())?;
        let mut buffer = Operand::output(into)?;
        self.run(into.py(), "load_neighbour", false, async move || {
            window.load_neighbour(source, &mut buffer).await
        })
    }

    /// Replaces the value x of this rank; p does not change.
    fn store(&self, value: ElementsArgument) -> CallResult {
        let window = self.home.get(value.py())?;
        let buffer = Operand::input(value)?;
        self.run(value.py(), "store", false, async move || window.store(&buffer).await)
    }

    /// Adds to the value of this rank: x ← x + weight · elements.
    #[pyo3(signature = (elements, weight = 1.0))]
    fn add(&self, elements: ElementsArgument, weight: f64) -> CallResult {
        let window = self.home.get(elements.py())?;
        let buffer = Operand::input(elements)?;
        self.run(elements.py(), "add", false, async move || window.add(weight, &buffer).await)
    }

    /// Returns the complete state of this rank's part, which can be pickled. Save on all ranks while no message is in
    /// flight: after a barrier.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let window = self.home.get(py)?;
        states(py, py.detach(|| window.blocking().save()))
    }

    /// Continues from a `state_dict`, in a window created with the same arguments; on all ranks, before anything is
    /// sent.
    fn load_state_dict(&self, py: Python<'_>, state: BTreeMap<String, SavedEncoding>) -> PyResult<()> {
        let window = self.home.get(py)?;
        let states = restored(py, state)?;
        py.detach(|| window.blocking().restore(states)).map_err(|error| exception(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("Window(rank {}, sources {:?})", self.all.rank(), self.sources)
    }
}

impl Window {
    pub(super) fn new(
        all: Communicator,
        home: Arc<ClosableOwner<asynchronous::Window>>,
        sources: Vec<usize>,
    ) -> Self {
        Window { all, home, sources }
    }

    fn run(
        &self,
        py: Python<'_>,
        what: &'static str,
        async_op: bool,
        work: impl AsyncFnOnce() -> Result<()> + Send + 'static,
    ) -> CallResult {
        let call = CallOptions { what, async_op, timeout: None };
        self.all.run_at_once(py, call, async move |_: &InnerCommunicator| nothing(work().await))
    }
}

/// Returns ranks with their weights; `usual` for those without.
fn weights(
    peers: Option<WindowPeers<'_>>,
    all: impl FnOnce() -> Vec<usize>,
    usual: f64,
) -> PyResult<Vec<(usize, f64)>> {
    let ranks = match peers {
        Some(WindowPeers::Weighted(weights)) => {
            return weights.iter().map(|(rank, weight)| Ok((rank.extract()?, weight.extract()?))).collect();
        }
        Some(WindowPeers::Ranks(ranks)) => ranks,
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
    saved: BTreeMap<String, SavedEncoding>,
) -> PyResult<Vec<(String, hexagram::encoding::State)>> {
    saved.into_iter().map(|(name, saved)| Ok((name, saved.state(py)?))).collect()
}
