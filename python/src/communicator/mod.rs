//! The communicator: this rank's membership in a group of ranks, with every primitive as a method.
//!
//! This file starts calls and waits for them; the primitives are in the files below, by family, as in the logical
//! layer.

mod centralized;
mod collectives;
mod decentralized;
mod encoded;
mod groups;
mod hierarchy;
mod messages;

pub(crate) use hierarchy::Hierarchy;

use crate::callbacks;
use crate::error::usage;
use crate::memory::{elements_owner, gpu};
use crate::work::{Work, WorkValue};
use crate::world::{Over, WorldMember, seconds};
use hexagram::Result;
use hexagram::logical::executor::{Awaited, Executor, GroupHandle, JobOptions, Order, Ticket};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// An argument with elements.
pub(crate) type ElementsArgument<'a, 'py> = &'a Bound<'py, PyAny>;
/// Result of a call: a value, or a [`Work`].
pub(crate) type CallResult = PyResult<Py<PyAny>>;
/// The communicator on which an operation runs.
pub(crate) type InnerCommunicator = hexagram::Communicator;

/// Membership of this process in a group of ranks.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Communicator {
    group: Arc<SharedGroup>,
    lane: usize,
}

/// A group, until its last communicator is dropped.
struct SharedGroup {
    member: Arc<WorldMember>,
    handle: GroupHandle,
    over: Over,
}

impl Drop for SharedGroup {
    fn drop(&mut self) {
        self.member.release(&self.handle, self.over);
    }
}

/// Options of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallOptions {
    /// Name in errors.
    pub(crate) what: &'static str,
    /// True to return a [`Work`] without waiting.
    pub(crate) async_op: bool,
    /// Maximum time without progress of the operation, in seconds; `None` for the default of the world.
    pub(crate) timeout: Option<f64>,
}

impl Communicator {
    pub(crate) fn new(member: Arc<WorldMember>, handle: GroupHandle, over: Over) -> Self {
        Communicator { group: Arc::new(SharedGroup { member, handle, over }), lane: 0 }
    }

    /// Returns a communicator of a group that was made from this one.
    fn group_like(&self, handle: GroupHandle) -> Self {
        Communicator::new(Arc::clone(&self.group.member), handle, self.group.over)
    }

    /// Returns the executor of the operations. It must not be kept during a wait: if another thread leaves the world
    /// meanwhile, the world must not be dropped there, with the interpreter lock held.
    fn executor(&self, py: Python<'_>) -> PyResult<Executor> {
        let joined = self.group.member.get(py)?;
        let executor = joined.executor(self.group.over).cloned();
        executor.ok_or_else(|| usage(py, "this communicator of GPUs is closed", "call `on_gpu` again"))
    }

    /// Runs a collective, after earlier ones on this lane.
    pub(crate) fn run(
        &self,
        py: Python<'_>,
        call: CallOptions,
        operation: impl AsyncFnOnce(&InnerCommunicator) -> Result<WorkValue> + Send + 'static,
    ) -> CallResult {
        self.run_in(py, Order::Lane(self.lane), call, operation)
    }

    /// Runs an operation concurrently with all others.
    pub(crate) fn run_at_once(
        &self,
        py: Python<'_>,
        call: CallOptions,
        operation: impl AsyncFnOnce(&InnerCommunicator) -> Result<WorkValue> + Send + 'static,
    ) -> CallResult {
        self.run_in(py, Order::AtOnce, call, operation)
    }

    /// Runs a collective that creates something, and returns it.
    pub(crate) fn make<T: Send + 'static>(
        &self,
        py: Python<'_>,
        what: &'static str,
        make: impl AsyncFnOnce(&InnerCommunicator) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let made = Arc::new(Mutex::new(None));
        let home = Arc::clone(&made);
        self.run(
            py,
            CallOptions { what, async_op: false, timeout: None },
            async move |comm: &InnerCommunicator| {
                let made = make(comm).await?;
                *home.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
                Ok(WorkValue::Nothing)
            },
        )?;
        let made = made.lock().unwrap_or_else(PoisonError::into_inner).take();
        made.ok_or_else(|| usage(py, format!("{what} returned no object"), "report it as a bug"))
    }

    /// Returns the membership of this process in the world of the group.
    pub(crate) fn member(&self) -> &Arc<WorldMember> {
        &self.group.member
    }

    /// Begins an operation, and waits for it unless it is asynchronous.
    fn run_in(
        &self,
        py: Python<'_>,
        order: Order,
        call: CallOptions,
        operation: impl AsyncFnOnce(&InnerCommunicator) -> Result<WorkValue> + Send + 'static,
    ) -> CallResult {
        let options = call.options(py, order)?;
        call.prepare(py, &self.group.member)?;
        let executor = self.executor(py)?;
        // SAFETY: operations own their buffers and settings, all of which may move between threads, and keep nothing of
        // the communicator.
        let ticket = unsafe { executor.submit(&self.group.handle, options, operation) };
        drop(executor);
        call.begun(py, &self.group.member, ticket)
    }
}

impl CallOptions {
    fn options(self, py: Python<'_>, order: Order) -> PyResult<JobOptions> {
        let deadline = self.timeout.map(|timeout| seconds(py, timeout)).transpose()?;
        let awaited = if self.async_op { Awaited::Later } else { Awaited::AtOnce };
        Ok(JobOptions { order, deadline, awaited, what: self.what })
    }

    /// Ensures that objects kept by ended operations are dropped, including those of this one.
    fn prepare(self, py: Python<'_>, member: &WorldMember) -> PyResult<()> {
        elements_owner::sweep(py, member.generation());
        // It drops the objects of an asynchronous operation, if no call does, and of one on a GPU, which ends later.
        if self.async_op || gpu::has_operands() { callbacks::start(py) } else { Ok(()) }
    }

    /// Returns the work of an operation in progress, or waits for it and returns its value.
    fn begun(self, py: Python<'_>, member: &WorldMember, ticket: Ticket<WorkValue>) -> CallResult {
        let work = Work::new(ticket, member.generation());
        if self.async_op { Ok(Py::new(py, work)?.into_any()) } else { work.finish(py) }
    }
}

/// Returns the value of an operation without a result.
pub(crate) fn nothing(outcome: Result<()>) -> Result<WorkValue> {
    outcome.map(|()| WorkValue::Nothing)
}
