//! Pair exchanges: two ranks average their values at any time, without a third.

use super::closable_owner::ClosableOwner;
use super::window::{restored, states};
use crate::communicator::{
    CallOptions, CallResult, Communicator, ElementsArgument, InnerCommunicator, nothing,
};
use crate::error::exception;
use crate::memory::Operand;
use crate::values::state::SavedEncoding;
use crate::values::whole::ranks;
use crate::work::WorkValue;
use hexagram::asynchronous;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The value of one rank, which it averages with that of one other rank at a time. The mean over all ranks is
/// preserved.
///
/// See `Service.pair_exchange`.
#[pyclass(frozen, module = "hexagram.asynchronous")]
pub(crate) struct PairExchange {
    all: Communicator,
    home: Arc<ClosableOwner<asynchronous::PairExchange>>,
}

#[pymethods]
impl PairExchange {
    /// Averages the value of this rank with that of rank `peer`, whose program does not participate; returns the number
    /// of the exchange on both ranks.
    ///
    /// Raises `UsageError` if `peer` is this rank, or out of range.
    #[pyo3(signature = (peer, *, async_op = false))]
    fn exchange(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = ranks)] peer: usize,
        async_op: bool,
    ) -> CallResult {
        let pair = self.home.get(py)?;
        let call = CallOptions { what: "exchange", async_op, timeout: None };
        self.all.run_at_once(py, call, async move |_: &InnerCommunicator| {
            let done = pair.exchange(peer).await?;
            Ok(WorkValue::Exchanged(done.mine, done.theirs))
        })
    }

    /// Returns the number of exchanges that have changed the value of this rank.
    #[getter]
    fn exchanges(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.home.get(py)?.exchanges())
    }

    /// Copies the value of this rank into elements of its type and length.
    fn load(&self, into: ElementsArgument) -> CallResult {
        let pair = self.home.get(into.py())?;
        let mut buffer = Operand::output(into)?;
        let call = CallOptions { what: "load", async_op: false, timeout: None };
        self.all.run_at_once(into.py(), call, async move |_: &InnerCommunicator| {
            nothing(pair.load(&mut buffer).await)
        })
    }

    /// Adds a local step: x ← x + weight · elements. Exchanges in progress keep it.
    #[pyo3(signature = (elements, weight = 1.0))]
    fn add(&self, elements: ElementsArgument, weight: f64) -> CallResult {
        let pair = self.home.get(elements.py())?;
        let buffer = Operand::input(elements)?;
        let call = CallOptions { what: "add", async_op: false, timeout: None };
        self.all.run_at_once(elements.py(), call, async move |_: &InnerCommunicator| {
            nothing(pair.add(weight, &buffer).await)
        })
    }

    /// Returns the complete state of this rank, which can be pickled. Save on all ranks while no exchange is in
    /// progress: after a barrier.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let pair = self.home.get(py)?;
        states(py, py.detach(|| pair.blocking().save()))
    }

    /// Continues from a `state_dict`, in a pair exchange created with the same arguments; on all ranks, before the
    /// first exchange.
    fn load_state_dict(&self, py: Python<'_>, state: BTreeMap<String, SavedEncoding>) -> PyResult<()> {
        let pair = self.home.get(py)?;
        let states = restored(py, state)?;
        py.detach(|| pair.blocking().restore(states)).map_err(|error| exception(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("PairExchange(rank {})", self.all.rank())
    }
}

impl PairExchange {
    pub(super) fn new(all: Communicator, home: Arc<ClosableOwner<asynchronous::PairExchange>>) -> Self {
        PairExchange { all, home }
    }
}
