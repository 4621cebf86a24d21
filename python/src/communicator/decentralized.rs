//! Averages with neighbours on a graph.

use super::{Argument, Call, Comm, Communicator, Returned, nothing};
use crate::dtype::graph;
use crate::memory::{Operand, lent_to_read, lent_to_write};
use crate::work::Value;
use hexagram::Buffer;
use pyo3::prelude::*;

#[pymethods]
impl Communicator {
    /// Mixes with neighbours, in place, by the weights of a graph at a step: `"ring"`, `"one-peer-exponential"`,
    /// `"torus"` and others. Raises `UsageError` with the nearest names for a graph that there is not.
    #[pyo3(signature = (elements, graph, step, *, async_op = false, timeout = None))]
    fn gossip(
        &self,
        elements: Argument,
        graph: &str,
        step: u64,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let schedule = self::graph(py, graph)?;
        let mut buffer = Operand::output(elements)?;
        self.run(py, Call { what: "gossip", async_op, timeout }, async move |comm: &Comm| {
            nothing(comm.gossip(&mut buffer, &*schedule, step).await)
        })
    }

    /// Mixes elements, and `weight` with them, over a directed graph, and returns the new weight: begin with 1. The
    /// estimate is `elements / weight`.
    #[pyo3(signature = (elements, weight, graph, step, *, async_op = false, timeout = None))]
    fn push_sum(
        &self,
        elements: Argument,
        weight: f64,
        graph: &str,
        step: u64,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let schedule = self::graph(py, graph)?;
        let mut buffer = Operand::output(elements)?;
        self.run(py, Call { what: "push_sum", async_op, timeout }, async move |comm: &Comm| {
            let mut weight = weight;
            comm.push_sum(&mut buffer, &mut weight, &*schedule, step).await?;
            Ok(Value::Number(weight))
        })
    }

    /// Sends `outgoing[i]` to rank `neighbours[i]`, and receives `incoming[i]` from it; all are of one length.
    #[pyo3(signature = (neighbours, outgoing, incoming, *, async_op = false, timeout = None))]
    fn neighbour_exchange(
        &self,
        py: Python<'_>,
        neighbours: Vec<usize>,
        outgoing: Vec<Bound<'_, PyAny>>,
        incoming: Vec<Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let outgoing = outgoing.iter().map(lent_to_read).collect::<PyResult<Vec<Buffer>>>()?;
        let incoming = incoming.iter().map(lent_to_write).collect::<PyResult<Vec<Buffer>>>()?;
        self.run(py, Call { what: "neighbour_exchange", async_op, timeout }, async move |comm: &Comm| {
            nothing(comm.neighbour_exchange(&neighbours, &outgoing, &incoming).await)
        })
    }
}
