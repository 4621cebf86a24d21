//! The group itself: its ranks, its lanes, its subgroups, and their shared memory.

use super::{CallOptions, Communicator, Hierarchy, InnerCommunicator};
use crate::dtype::dtype;
use crate::memory::Memory;
use crate::whole::{count, ranks};
use crate::work::outcome;
use hexagram::logical::Channel;
use hexagram::logical::executor::{GroupHandle, Order, Ticket};
use pyo3::prelude::*;
use std::sync::Arc;

#[pymethods]
impl Communicator {
    /// Returns this rank in the group.
    #[getter]
    pub(crate) fn rank(&self) -> usize {
        self.group.handle.rank()
    }

    /// Returns the number of ranks in the group.
    #[getter]
    pub(crate) fn size(&self) -> usize {
        self.group.handle.size()
    }

    /// Returns the rank in the world of each rank of the group.
    #[getter]
    fn world_ranks(&self) -> Vec<usize> {
        self.group.handle.world_ranks().to_vec()
    }

    fn __repr__(&self) -> String {
        format!("Communicator(rank {} of {}, lane {})", self.rank(), self.size(), self.lane)
    }

    /// Returns the same group on another lane, whose operations run concurrently with those of this one.
    pub(crate) fn lane(&self, #[pyo3(from_py_with = count)] number: usize) -> Self {
        Communicator { group: Arc::clone(&self.group), lane: number }
    }

    /// Splits the group by `color`: every rank gets the group of those with the same color, in the order of `key`. A
    /// collective call; a rank without a color (`None`) is in no group.
    #[pyo3(signature = (color, key = 0, *, timeout = None))]
    fn split(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] color: Option<u32>,
        key: i64,
        timeout: Option<f64>,
    ) -> PyResult<Option<Self>> {
        self.make_group(py, "split", timeout, async move |comm: &InnerCommunicator| {
            comm.split(color, key).await
        })
    }

    /// Creates the group of some ranks of this one, in the given order; returns `None` on the others. A collective
    /// call.
    #[pyo3(signature = (ranks, *, timeout = None))]
    fn subgroup(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = ranks)] ranks: Vec<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Self>> {
        self.make_group(py, "subgroup", timeout, async move |comm: &InnerCommunicator| {
            comm.subgroup(&ranks).await
        })
    }

    /// Creates the group of `ranks`; only these ranks call it.
    #[pyo3(signature = (ranks, *, timeout = None))]
    fn group_of(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = ranks)] ranks: Vec<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Self>> {
        self.make_group(py, "group_of", timeout, async move |comm: &InnerCommunicator| {
            comm.group_of(&ranks).await.map(Some)
        })
    }

    /// Splits the group into its hosts, for collectives that run within each host first and then among one leader of
    /// each. A collective call.
    #[pyo3(signature = (*, timeout = None))]
    fn hierarchy(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Hierarchy> {
        let member = &self.group.member;
        let options = CallOptions { what: "hierarchy", async_op: false, timeout }
            .options(py, Order::Lane(self.lane))?;
        let ticket = member.get(py)?.executor.submit_hierarchy(&self.group.handle, options);
        let handle = outcome(py, &ticket)?;
        Hierarchy::new(py, Communicator::new(Arc::clone(member), handle))
    }

    /// Returns zeroed elements in memory that the other ranks of this host can read directly. A collective call, in the
    /// same order on all ranks. Pass such memory to a collective on all ranks or on none.
    fn registered(
        &self,
        py: Python<'_>,
        dtype: &str,
        #[pyo3(from_py_with = count)] elements: usize,
    ) -> PyResult<Memory> {
        let dtype = self::dtype(py, dtype)?;
        let buffer = self
            .make(py, "registered", async move |comm: &InnerCommunicator| comm.registered(dtype, elements))?;
        Ok(Memory::new(buffer))
    }
}

impl Communicator {
    /// Agrees with the other ranks on a channel for a thread with its own communicator of this group.
    pub(crate) fn channel(&self, py: Python<'_>) -> PyResult<Channel> {
        self.make(py, "channel", async move |comm: &InnerCommunicator| comm.channel().await)
    }

    /// Creates a group, and returns its communicator; `None` if this rank is not in it.
    fn make_group(
        &self,
        py: Python<'_>,
        what: &'static str,
        timeout: Option<f64>,
        make: impl AsyncFnOnce(&InnerCommunicator) -> hexagram::Result<Option<InnerCommunicator>> + Send + 'static,
    ) -> PyResult<Option<Self>> {
        let member = &self.group.member;
        let options = CallOptions { what, async_op: false, timeout }.options(py, Order::Lane(self.lane))?;
        let joined = member.get(py)?;
        // SAFETY: the job owns its arguments, and returns a communicator created from its own.
        let ticket: Ticket<Option<GroupHandle>> =
            unsafe { joined.executor.submit_group(&self.group.handle, options, make) };
        // As in every call, it is not kept during the wait.
        drop(joined);
        let handle = outcome(py, &ticket)?;
        Ok(handle.map(|handle| Communicator::new(Arc::clone(member), handle)))
    }
}
