//! Collectives between all ranks.

use super::{CallOptions, CallResult, Communicator, ElementsArgument, InnerCommunicator, nothing};
use crate::memory::Operand;
use crate::values::dtype::reduction;
use crate::values::whole::{count, ranks};
use pyo3::prelude::*;

#[pymethods]
impl Communicator {
    /// Gathers `mine` of rank r as block r of `all` on rank `root`; only the root passes `all`.
    #[pyo3(signature = (mine, all = None, *, root, async_op = false, timeout = None))]
    fn gather(
        &self,
        mine: ElementsArgument,
        all: Option<ElementsArgument>,
        #[pyo3(from_py_with = ranks)] root: usize,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let mut from = Operand::input(mine)?;
        let mut to = all.map(Operand::output).transpose()?;
        if let Some(to) = &to {
            from = from.apart_from(mine.py(), to)?;
        }
        self.run(
            mine.py(),
            CallOptions { what: "gather", async_op, timeout },
            async move |comm: &InnerCommunicator| nothing(comm.gather(&from, to.as_deref_mut(), root).await),
        )
    }

    /// Scatters block r of `all` on rank `root` to `mine` of rank r; only the root passes `all`.
    #[pyo3(signature = (all, mine, *, root, async_op = false, timeout = None))]
    fn scatter(
        &self,
        all: Option<ElementsArgument>,
        mine: ElementsArgument,
        #[pyo3(from_py_with = ranks)] root: usize,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let mut to = Operand::output(mine)?;
        let from = all.map(|all| Operand::input(all)?.apart_from(mine.py(), &to)).transpose()?;
        self.run(
            mine.py(),
            CallOptions { what: "scatter", async_op, timeout },
            async move |comm: &InnerCommunicator| nothing(comm.scatter(from.as_deref(), &mut to, root).await),
        )
    }

    /// Gathers `mine` of all ranks in `all` on every rank, in rank order. `counts[r]` is the number of elements of rank
    /// r, which may be 0; the list is the same on all ranks.
    ///
    /// >>> comm.all_gather_v(mine, all, [3, 0, 5])  # doctest: +SKIP
    ///
    /// Raises `UsageError` if counts and lengths do not match, `Mismatch` if ranks differ, also in their counts.
    #[pyo3(signature = (mine, all, counts, *, async_op = false, timeout = None))]
    fn all_gather_v(
        &self,
        mine: ElementsArgument,
        all: ElementsArgument,
        #[pyo3(from_py_with = count)] counts: Vec<usize>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let mut to = Operand::output(all)?;
        let from = Operand::input(mine)?.apart_from(all.py(), &to)?;
        let call = CallOptions { what: "all_gather_v", async_op, timeout };
        self.run(mine.py(), call, async move |comm: &InnerCommunicator| {
            nothing(comm.all_gather_v(&from, &mut to, &counts).await)
        })
    }

    /// Reduces `all` over all ranks, and stores `counts[r]` elements in `mine` of rank r, in rank order. Raises as
    /// `all_gather_v`.
    #[pyo3(signature = (all, counts, mine, op = "sum", *, async_op = false, timeout = None))]
    fn reduce_scatter_v(
        &self,
        all: ElementsArgument,
        #[pyo3(from_py_with = count)] counts: Vec<usize>,
        mine: ElementsArgument,
        op: &str,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let py = mine.py();
        let op = reduction(py, op)?;
        let mut to = Operand::output(mine)?;
        let from = Operand::input(all)?.apart_from(mine.py(), &to)?;
        self.run(
            py,
            CallOptions { what: "reduce_scatter_v", async_op, timeout },
            async move |comm: &InnerCommunicator| {
                nothing(comm.reduce_scatter_v(&from, &counts, &mut to, op).await)
            },
        )
    }

    /// Sends block s of `sent` to rank s, and receives block r of `received` from rank r. Both have `size` blocks.
    #[pyo3(signature = (sent, received, *, async_op = false, timeout = None))]
    fn all_to_all(
        &self,
        sent: ElementsArgument,
        received: ElementsArgument,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let mut to = Operand::output(received)?;
        let from = Operand::input(sent)?.apart_from(received.py(), &to)?;
        let call = CallOptions { what: "all_to_all", async_op, timeout };
        self.run(sent.py(), call, async move |comm: &InnerCommunicator| {
            nothing(comm.all_to_all(&from, &mut to).await)
        })
    }

    /// Sends `send_counts[r]` elements to rank r, and receives `recv_counts[r]` from it, both in rank order. Raises
    /// `Mismatch` if a pair of ranks differs.
    #[pyo3(signature = (sent, send_counts, received, recv_counts, *, async_op = false, timeout = None))]
    fn all_to_all_v(
        &self,
        sent: ElementsArgument,
        #[pyo3(from_py_with = count)] send_counts: Vec<usize>,
        received: ElementsArgument,
        #[pyo3(from_py_with = count)] recv_counts: Vec<usize>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let mut to = Operand::output(received)?;
        let from = Operand::input(sent)?.apart_from(received.py(), &to)?;
        self.run(
            sent.py(),
            CallOptions { what: "all_to_all_v", async_op, timeout },
            async move |comm: &InnerCommunicator| {
                nothing(comm.all_to_all_v(&from, &send_counts, &mut to, &recv_counts).await)
            },
        )
    }

    /// Returns after every rank has called it.
    #[pyo3(signature = (*, async_op = false, timeout = None))]
    fn barrier(&self, py: Python<'_>, async_op: bool, timeout: Option<f64>) -> CallResult {
        let call = CallOptions { what: "barrier", async_op, timeout };
        self.run(py, call, async move |comm: &InnerCommunicator| nothing(comm.barrier().await))
    }
}
