//! The parameter server on all ranks: each keeps a shard, and updates it by the pushes of the others.

use super::closable_owner::ClosableOwner;
use crate::communicator::{
    CallOptions, CallResult, Communicator, ElementsArgument, InnerCommunicator, nothing,
};
use crate::error::{exception, usage};
use crate::memory::Operand;
use crate::values::state::{SavedEncoding, dictionary};
use crate::values::whole::count;
use crate::work::WorkValue;
use hexagram::asynchronous::{self, Add, ServerOptions, SgdUpdate};
use hexagram::encoding::Encoding;
use hexagram::{Buffer, Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A vector of f32 that is distributed over ranks, and updated there by pushes from any rank. The shard of this rank is
/// `shard_range`: chunk r for rank r with up to 16 ranks; with more ranks, short vectors have fewer shards.
///
/// A pull at clock c contains all pushes of clocks before c − staleness, all of its own rank, and any others that have
/// arrived; with staleness 0, exactly those of the clocks before c, applied in the order of clocks and ranks. See
/// `Service.server`.
#[pyclass(frozen, module = "hexagram.asynchronous")]
pub(crate) struct Server {
    /// On its own lane, so that its calls run in order.
    all: Communicator,
    home: Arc<ClosableOwner<ServerSlot>>,
    parameters: usize,
}

/// Owner of a server while no call uses it.
type ServerSlot = Mutex<Option<asynchronous::Server>>;

/// Encodings of pushes and pulls.
pub(super) struct ServerCodecs {
    pub(super) pushed: Option<Encoding>,
    pub(super) pulled: Option<Encoding>,
}

impl ServerCodecs {
    /// Starts a server on all ranks, which adds the pushes, or treats them as gradients.
    pub(super) async fn start(
        self,
        comm: &InnerCommunicator,
        service: &asynchronous::Service,
        clock: &asynchronous::Clock,
        initial: &Buffer,
        rate: Option<f32>,
    ) -> Result<asynchronous::Server> {
        let ServerCodecs { pushed, pulled } = self;
        let options = ServerOptions { pushed, pulled };
        match rate {
            None => asynchronous::Server::start(comm, service, clock, initial, Add, options).await,
            Some(rate) => {
                let update = SgdUpdate { rate };
                asynchronous::Server::start(comm, service, clock, initial, update, options).await
            }
        }
    }
}

#[pymethods]
impl Server {
    fn __len__(&self) -> usize {
        self.parameters
    }

    /// Sends f32 to the ranks that keep the parameters from `start` on. Does not wait for them: a failure there is
    /// raised by the next call.
    ///
    /// Raises `UsageError` if the range exceeds the parameters, `NotFinite` if the codec refuses a value.
    ///
    /// >>> server.push(gradient)  # doctest: +SKIP
    #[pyo3(signature = (delta, start = 0, *, async_op = false))]
    fn push(
        &self,
        delta: ElementsArgument,
        #[pyo3(from_py_with = count)] start: usize,
        async_op: bool,
    ) -> CallResult {
        let buffer = Operand::input(delta)?;
        let range = start..start.saturating_add(buffer.len());
        self.run(delta.py(), "push", async_op, async move |server: &mut asynchronous::Server| {
            nothing(server.push(range, &buffer).await)
        })
    }

    /// Copies the parameters from `start` on into `into`, f32, after waiting for the clock. With `cached`, the values
    /// of the last such pull are reused while they are recent enough. Returns the clock before which the pushes of
    /// every rank are included, and the number of pushes that each of the shards had applied.
    ///
    /// Raises `DeadlineExceeded` with the rank that is late, or `PeerFailed` with the rank that failed.
    #[pyo3(signature = (into, start = 0, *, cached = false, async_op = false))]
    fn pull(
        &self,
        into: ElementsArgument,
        #[pyo3(from_py_with = count)] start: usize,
        cached: bool,
        async_op: bool,
    ) -> CallResult {
        let mut buffer = Operand::output(into)?;
        let range = start..start.saturating_add(buffer.len());
        self.run(into.py(), "pull", async_op, async move |server: &mut asynchronous::Server| {
            let pulled = match cached {
                true => server.pull_cached(range, &mut buffer).await,
                false => server.pull(range, &mut buffer).await,
            };
            pulled.map(|pulled| WorkValue::Pulled(pulled.clock, pulled.versions))
        })
    }

    /// Range of the parameters on this rank, as `(first, end)`; empty if it has none.
    #[getter]
    fn shard_range(&self) -> (usize, usize) {
        let range = asynchronous::shard_range(self.parameters, self.all.size(), self.all.rank());
        (range.start, range.end)
    }

    /// Copies the parameters of this rank into `into`, f32, with the length of `shard_range`, and returns the index of
    /// the first. To save a server, call it on all ranks after `Clock.settle`; to restore it, start one with the saved
    /// values.
    fn shard(&self, into: ElementsArgument) -> CallResult {
        let buffer = Operand::output(into)?;
        self.run(into.py(), "shard", false, async move |server: &mut asynchronous::Server| {
            let (range, parameters) = server.shard().await?;
            buffer.write_all()?.copy_from(&Buffer::from_slice(&parameters)?.read_all()?)?;
            Ok(WorkValue::Count(range.start as u64))
        })
    }

    /// Returns the state of the push encoding on this rank, which can be pickled; empty without a codec.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut server = self.take(py)?;
        let saved = server.pushed().map(|encoding| dictionary(py, encoding.state()));
        self.put(py, server)?;
        saved.unwrap_or_else(|| Ok(PyDict::new(py)))
    }

    /// Restores the result of `state_dict`, in a server created with the same arguments.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        if state.is_empty() {
            return Ok(());
        }
        let state = state.extract::<SavedEncoding>()?.state(py)?;
        let mut server = self.take(py)?;
        let restored = server.pushed().map(|encoding| *encoding.state_mut() = state);
        self.put(py, server)?;
        restored.ok_or_else(|| {
            usage(py, "the pushes of this server are not encoded", "restore into one with the same codecs")
        })
    }

    fn __repr__(&self) -> String {
        format!("Server({} parameters, rank {})", self.parameters, self.all.rank())
    }
}

impl Server {
    pub(super) fn new(all: &Communicator, home: Arc<ClosableOwner<ServerSlot>>, parameters: usize) -> Self {
        // Calls on these lanes are not collectives, so they need no tags.
        static LANES: AtomicUsize = AtomicUsize::new(0);
        let lane = usize::MAX - LANES.fetch_add(1, Ordering::Relaxed);
        Server { all: all.lane(lane), home, parameters }
    }

    /// Runs a call after the earlier ones.
    fn run(
        &self,
        py: Python<'_>,
        what: &'static str,
        async_op: bool,
        work: impl AsyncFnOnce(&mut asynchronous::Server) -> Result<WorkValue> + Send + 'static,
    ) -> CallResult {
        let kept = self.home.get(py)?;
        self.all.run(py, CallOptions { what, async_op, timeout: None }, async move |_: &InnerCommunicator| {
            let mut server = take(&kept)?;
            let outcome = work(&mut server).await;
            put(&kept, server);
            outcome
        })
    }

    fn take(&self, py: Python<'_>) -> PyResult<asynchronous::Server> {
        take(&*self.home.get(py)?).map_err(|error| exception(py, &error))
    }

    fn put(&self, py: Python<'_>, server: asynchronous::Server) -> PyResult<()> {
        put(&*self.home.get(py)?, server);
        Ok(())
    }
}

fn take(kept: &ServerSlot) -> Result<asynchronous::Server> {
    let taken = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.ok_or_else(|| Error::usage("this server is in use by another call", "wait for that call first"))
}

fn put(kept: &ServerSlot, server: asynchronous::Server) {
    *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
}
