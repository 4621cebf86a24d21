//! The group itself: its ranks, its lanes, its subgroups, and their shared memory.

use super::{CallOptions, Communicator, Hierarchy, InnerCommunicator};
use crate::error::{exception, usage};
use crate::memory::{Memory, gpu};
use crate::values::dtype::dtype;
use crate::values::whole::{count, ranks};
use crate::work::{interruptible, outcome};
use crate::world::Over;
use hexagram::logical::Channel;
use hexagram::logical::executor::{Driving, Executor, ExecutorOptions, GroupHandle, Order, Ticket};
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
        let options = CallOptions { what: "hierarchy", async_op: false, timeout }
            .options(py, Order::Lane(self.lane))?;
        let ticket = self.executor(py)?.submit_hierarchy(&self.group.handle, options);
        let handle = outcome(py, &ticket)?;
        Hierarchy::new(py, self.group_like(handle))
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

    /// Returns a communicator of all ranks for memory of GPUs, and the path of this memory: `"nccl"`, `"ipc"` within a
    /// host, or `None` if it travels through the host, as over all other communicators. Each rank passes the number of its
    /// GPU; the first call counts. A thread of its own drives the operations. A collective call of all ranks of the world.
    fn on_gpu(&self, py: Python<'_>, gpu: usize) -> PyResult<(Self, Option<String>)> {
        let member = &self.group.member;
        // As in every call, the world is not kept during the waits.
        let (ranks, opened) = {
            let joined = member.get(py)?;
            (joined.world.size(), joined.gpu_executor.map(|executor| executor.world().clone()))
        };
        if self.size() != ranks {
            let what = format!("this group has {} of the {ranks} ranks", self.size());
            return Err(usage(py, what, "call on_gpu of the communicator of the world, then split that one"));
        }
        let handle = match opened {
            Some(handle) => handle,
            None => {
                let channel = self.channel(py)?;
                let options = ExecutorOptions { driving: Driving::OneThread, ..ExecutorOptions::default() };
                let keeper = Arc::clone(member);
                let opened = interruptible(py, move || {
                    let executor = Executor::over(channel, options)?;
                    let handle = executor.world().clone();
                    keeper.keep_gpu_executor(executor);
                    Ok(handle)
                })?;
                opened.map_err(|error| exception(py, &error))?
            }
        };
        let on_gpus = Communicator::new(Arc::clone(member), handle, Over::Gpus);
        let path = on_gpus.make(py, "on_gpu", async move |comm: &InnerCommunicator| {
            comm.attach(&gpu::shared_queue(gpu)?)
        })?;
        Ok((on_gpus, path.map(|path| path.to_string())))
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
        let options = CallOptions { what, async_op: false, timeout }.options(py, Order::Lane(self.lane))?;
        let executor = self.executor(py)?;
        // SAFETY: the job owns its arguments, and returns a communicator created from its own.
        let ticket: Ticket<Option<GroupHandle>> =
            unsafe { executor.submit_group(&self.group.handle, options, make) };
        drop(executor);
        let handle = outcome(py, &ticket)?;
        Ok(handle.map(|handle| self.group_like(handle)))
    }
}
