//! The ranks of a group, by host.

use super::{CallOptions, CallResult, Communicator};
use crate::values::whole::count;
use crate::work::{WorkValue, outcome};
use hexagram::Result;
use hexagram::logical::executor::{Order, Ticket};
use pyo3::prelude::*;

/// The ranks of a group, by host. See `Communicator.hierarchy`.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Hierarchy {
    all: Communicator,
    hosts: Vec<Vec<usize>>,
}

/// Hosts and leaders on which an operation runs.
pub(super) type InnerHierarchy = hexagram::Hierarchy;

#[pymethods]
impl Hierarchy {
    /// Returns the ranks of each host in the group, in ascending order; hosts in the order of their leaders.
    #[getter]
    fn hosts(&self) -> Vec<Vec<usize>> {
        self.hosts.clone()
    }

    /// Returns true on the lowest rank of each host.
    #[getter]
    fn is_leader(&self) -> bool {
        self.hosts.iter().any(|ranks| ranks.first() == Some(&self.all.rank()))
    }

    fn __repr__(&self) -> String {
        format!("Hierarchy(hosts {:?}, rank {})", self.hosts, self.all.rank())
    }

    /// Returns the same ranks on another lane, whose operations run concurrently with those of this one.
    fn lane(&self, #[pyo3(from_py_with = count)] number: usize) -> Self {
        Hierarchy { all: self.all.lane(number), hosts: self.hosts.clone() }
    }
}

impl Hierarchy {
    /// Wraps a group that the executor has split into hosts.
    pub(super) fn new(py: Python<'_>, all: Communicator) -> PyResult<Self> {
        let call = CallOptions { what: "hierarchy", async_op: false, timeout: None };
        let ticket = Self::submit(&all, py, call, async |hosts: &InnerHierarchy| Ok(hosts.hosts().to_vec()))?;
        let hosts = outcome(py, &ticket)?;
        Ok(Hierarchy { all, hosts })
    }

    pub(super) fn rank(&self) -> usize {
        self.all.rank()
    }

    /// Runs a collective, after earlier ones on this lane.
    pub(super) fn run(
        &self,
        py: Python<'_>,
        call: CallOptions,
        operation: impl AsyncFnOnce(&InnerHierarchy) -> Result<WorkValue> + Send + 'static,
    ) -> CallResult {
        let member = &self.all.group.member;
        call.prepare(py, member)?;
        let ticket = Self::submit(&self.all, py, call, operation)?;
        call.begun(py, member, ticket)
    }

    fn submit<T: Send + 'static>(
        all: &Communicator,
        py: Python<'_>,
        call: CallOptions,
        operation: impl AsyncFnOnce(&InnerHierarchy) -> Result<T> + Send + 'static,
    ) -> PyResult<Ticket<T>> {
        let executor = all.executor(py)?;
        let options = call.options(py, Order::Lane(all.lane))?;
        // SAFETY: operations own their buffers and settings, all of which may move between threads, and keep nothing of
        // the hierarchy.
        Ok(unsafe { executor.submit_in_hierarchy(&all.group.handle, options, operation) })
    }
}
