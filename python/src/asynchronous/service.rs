//! The service: one thread of a rank that answers the requests of the other ranks, and the objects created from it.

use super::clock::Clock;
use super::closable_owner::{ClosableOwner, Empties};
use super::pair::PairExchange;
use super::server::{Server, ServerCodecs};
use super::window::Window;
use crate::communicator::{Communicator, ElementsArgument, InnerCommunicator};
use crate::encoding::make;
use crate::error::exception;
use crate::memory::Operand;
use crate::values::whole::{count, ranks};
use crate::world::{Closes, World};
use hexagram::encoding::Encoding;
use hexagram::{Result, asynchronous};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Thread of this rank that answers the requests of the other ranks to its windows, pair exchanges, servers and clocks.
///
/// All ranks create the same objects from it, in the same order. It ends with `close`, `with`, or its world.
#[pyclass(frozen, module = "hexagram.asynchronous")]
pub(crate) struct Service {
    all: Communicator,
    running: Arc<RunningService>,
}

/// A service, and the objects created from it.
struct RunningService {
    service: Arc<ClosableOwner<asynchronous::Service>>,
    made: Mutex<Vec<Weak<dyn Empties>>>,
}

impl Closes for RunningService {
    fn close(&self) -> Result<()> {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        // No rank waits for a dropped clock.
        made.iter().filter_map(Weak::upgrade).for_each(|home| home.empty());
        match self.service.take() {
            Some(service) => service.blocking().close(),
            None => Ok(()),
        }
    }
}

#[pymethods]
impl World {
    /// Starts a service on all ranks, from which windows, pair exchanges, clocks and servers are created. A collective
    /// call.
    ///
    /// >>> with world.service() as service:
    /// ...     pair = service.pair_exchange(numpy.zeros(3))
    fn service(&self, py: Python<'_>) -> PyResult<Service> {
        let all = self.all();
        let service = all
            .make(py, "service", async |comm: &InnerCommunicator| asynchronous::Service::start(comm).await)?;
        let running =
            RunningService { service: ClosableOwner::new("service", service), made: Mutex::default() };
        let running = Arc::new(running);
        self.member().keep(Arc::clone(&running) as Arc<dyn Closes>);
        Ok(Service { all, running })
    }
}

#[pymethods]
impl Service {
    /// Creates a window of all ranks on a copy of `value`, floats with the same type and length on all. `sources` are
    /// the ranks that may put into the part of this rank; by default, all others. With a codec, messages are encoded,
    /// for f32.
    ///
    /// Raises `Mismatch` if ranks differ in type, length or codec, `UsageError` for integers and invalid ranks.
    ///
    /// >>> window = service.window(numpy.zeros(3), codec=None)
    #[pyo3(signature = (value, sources = None, *, codec = None, feedback = "none", seed = 0))]
    fn window(
        &self,
        value: ElementsArgument,
        #[pyo3(from_py_with = ranks)] sources: Option<Vec<usize>>,
        codec: Option<&str>,
        feedback: &str,
        seed: u64,
    ) -> PyResult<Window> {
        let py = value.py();
        let service = self.running.service.get(py)?;
        let others = |rank: &usize| *rank != self.all.rank();
        let sources = sources.unwrap_or_else(|| (0..self.all.size()).filter(others).collect());
        let encoding = encoding(py, codec, feedback, seed)?;
        let buffer = Operand::input(value)?;
        let named = sources.clone();
        let made = self.all.make(py, "window", async move |comm: &InnerCommunicator| {
            asynchronous::Window::create(comm, &service, &buffer, &named, encoding).await
        })?;
        Ok(Window::new(self.all.lane(0), self.keep("window", made), sources))
    }

    /// Creates a pair exchange on a copy of the `value` of every rank, floats with the same type and length on all, for
    /// averages of two ranks at a time. With `locked` an exchange excludes all others on both ranks. With a codec the
    /// difference is encoded, for f32; with difference feedback, values are encoded, too.
    ///
    /// Raises as `window`.
    #[pyo3(signature = (value, *, locked = false, codec = None, feedback = "none", seed = 0))]
    fn pair_exchange(
        &self,
        value: ElementsArgument,
        locked: bool,
        codec: Option<&str>,
        feedback: &str,
        seed: u64,
    ) -> PyResult<PairExchange> {
        let py = value.py();
        let service = self.running.service.get(py)?;
        let encoding = encoding(py, codec, feedback, seed)?;
        let buffer = Operand::input(value)?;
        let made = self.all.make(py, "pair_exchange", async move |comm: &InnerCommunicator| {
            let options = asynchronous::PairOptions { locked, encoding };
            asynchronous::PairExchange::create(comm, &service, &buffer, options).await
        })?;
        Ok(PairExchange::new(self.all.lane(0), self.keep("pair exchange", made)))
    }

    /// Starts a clock at 0 on all ranks; no rank is more than `staleness` clocks ahead of the slowest. With `None`, no
    /// rank waits.
    #[pyo3(signature = (staleness = Some(0)))]
    fn clock(&self, py: Python<'_>, #[pyo3(from_py_with = count)] staleness: Option<u64>) -> PyResult<Clock> {
        let service = self.running.service.get(py)?;
        let staleness = staleness.unwrap_or(asynchronous::Clock::UNBOUNDED);
        let made = self.all.make(py, "clock", async move |comm: &InnerCommunicator| {
            asynchronous::Clock::start(comm, &service, staleness).await
        })?;
        Ok(Clock::new(self.all.lane(0), self.keep("clock", made)))
    }

    /// Creates a parameter server on all ranks from `initial`, f32 and equal on all: each rank keeps
    /// `Server.shard_range`. Pushes are added, or with a `rate` treated as gradients: x ← x − rate · d. With codecs,
    /// pushes and pulls are encoded; feedback of pushes is none or error.
    ///
    /// Raises `Mismatch` if ranks differ in length or codecs.
    ///
    /// >>> clock = service.clock(staleness=2)
    /// >>> server = service.server(clock, numpy.zeros(10, "float32"), rate=0.1)
    #[pyo3(signature = (
        clock, initial, *, rate = None, push_codec = None, push_feedback = "none", pull_codec = None, seed = 0
    ))]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn server(
        &self,
        clock: &Clock,
        initial: ElementsArgument,
        rate: Option<f32>,
        push_codec: Option<&str>,
        push_feedback: &str,
        pull_codec: Option<&str>,
        seed: u64,
    ) -> PyResult<Server> {
        let py = initial.py();
        let service = self.running.service.get(py)?;
        let clock = clock.get(py)?;
        let codecs = ServerCodecs {
            pushed: encoding(py, push_codec, push_feedback, seed)?,
            pulled: encoding(py, pull_codec, "none", seed)?,
        };
        let buffer = Operand::input(initial)?;
        let parameters = buffer.len();
        let made = self.all.make(py, "server", async move |comm: &InnerCommunicator| {
            codecs.start(comm, &service, &clock, &buffer, rate).await
        })?;
        Ok(Server::new(&self.all, self.keep("server", Mutex::new(Some(made))), parameters))
    }

    /// Waits until all ranks have closed their service, and serves them until then. Objects created from it cannot be
    /// used afterwards. Close several services in the same order on all ranks.
    ///
    /// Raises the error that ended the service, here or on another rank.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.all.member().close(py, Arc::clone(&self.running) as Arc<dyn Closes>)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Closes the service. After an exception it does not wait for the others: leaving the world notifies them.
    #[pyo3(signature = (kind, _error, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _error: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some() { Ok(()) } else { self.close(py) }
    }
}

impl Service {
    /// Keeps an object until the service is closed.
    fn keep<T: Send + Sync + 'static>(&self, what: &'static str, made: T) -> Arc<ClosableOwner<T>> {
        let home = ClosableOwner::new(what, made);
        let weak = Arc::downgrade(&home) as Weak<dyn Empties>;
        let mut made = self.running.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|other| other.strong_count() > 0);
        made.push(weak);
        home
    }
}

/// Returns the encoding of a codec, if it is given.
fn encoding(py: Python<'_>, codec: Option<&str>, feedback: &str, seed: u64) -> PyResult<Option<Encoding>> {
    let made = codec.map(|codec| make(codec, feedback, seed)).transpose();
    made.map_err(|error| exception(py, &error))
}
