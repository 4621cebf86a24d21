//! Averages with neighbours on a graph.

use super::{CallOptions, CallResult, Communicator, InnerCommunicator, nothing};
use crate::memory::{lent_to_read, lent_to_write};
use crate::values::whole::ranks;
use hexagram::Buffer;
use pyo3::prelude::*;

#[pymethods]
impl Communicator {
    /// Sends `outgoing[i]` to rank `neighbours[i]`, and receives `incoming[i]` from it; all have the same length.
    #[pyo3(signature = (neighbours, outgoing, incoming, *, async_op = false, timeout = None))]
    fn neighbour_exchange(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = ranks)] neighbours: Vec<usize>,
        outgoing: Vec<Bound<'_, PyAny>>,
        incoming: Vec<Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let outgoing = outgoing.iter().map(lent_to_read).collect::<PyResult<Vec<Buffer>>>()?;
        let incoming = incoming.iter().map(lent_to_write).collect::<PyResult<Vec<Buffer>>>()?;
        self.run(
            py,
            CallOptions { what: "neighbour_exchange", async_op, timeout },
            async move |comm: &InnerCommunicator| {
                nothing(comm.neighbour_exchange(&neighbours, &outgoing, &incoming).await)
            },
        )
    }
}
