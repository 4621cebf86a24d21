//! The world of this process: joining, its state, and leaving.

mod departure;
mod leaving;
mod log;
mod next;
mod store;

use crate::communicator::Communicator;
use crate::error::{exception, usage};
use crate::fork::Generation;
use crate::values::whole::{count, ranks};
use crate::work::{interruptible, interruptible_then};
pub(crate) use departure::Closes;
use departure::Departure;
use hexagram::logical::executor::{Executor, ExecutorOptions, GroupHandle};
use hexagram::{Error, JoinOptions, Result};
use leaving::Leaving;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use store::PythonStore;

/// State that a world and its communicators share, from joining to leaving.
pub(crate) struct WorldMember {
    generation: Generation,
    joined: Mutex<Option<JoinedWorld>>,
    /// Objects with their own threads in this world, in the order in which they were started.
    open: Mutex<Vec<Arc<dyn Closes>>>,
    /// Engines, which end before the next generation begins.
    engines: Mutex<Vec<Weak<dyn Closes>>>,
    gave_up: AtomicBool,
    /// True after `World.next`.
    has_next: AtomicBool,
    /// The Python object of the world, until it is left.
    world: Mutex<Option<Py<World>>>,
}

/// A rank in its world.
#[derive(Clone)]
pub(crate) struct JoinedWorld {
    pub(crate) executor: Executor,
    /// Executor whose operations take paths between GPUs, which stay on one thread. Opened when first used.
    pub(crate) gpu_executor: Option<Executor>,
    pub(crate) world: hexagram::World,
}

impl JoinedWorld {
    /// Starts the executor of operations: in the next generation of an elastic job, if its members change meanwhile.
    fn start(mut world: hexagram::World, deadline: Option<Duration>) -> Result<Self> {
        loop {
            if let Some(deadline) = deadline {
                world.set_deadline(deadline);
            }
            match Executor::start(&world, 0, ExecutorOptions::default()) {
                Err(_) if world.changed() => world = world.next()?,
                started => return Ok(JoinedWorld { executor: started?, gpu_executor: None, world }),
            }
        }
    }

    /// Returns the executor for operations over these paths, if it was opened.
    pub(crate) fn executor(&self, over: Over) -> Option<&Executor> {
        match over {
            Over::Host => Some(&self.executor),
            Over::Gpus => self.gpu_executor.as_ref(),
        }
    }
}

/// Paths of the operations of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Through host memory.
    Host,
    /// Between GPUs, if they have a path.
    Gpus,
}

/// Worlds that were joined and not left. They are kept here so that the destruction of a Python object never leaves
/// one, which may take until the others leave, too.
static MEMBERS: Mutex<Vec<Arc<WorldMember>>> = Mutex::new(Vec::new());

fn members() -> MutexGuard<'static, Vec<Arc<WorldMember>>> {
    MEMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorldMember {
    fn joined(&self) -> MutexGuard<'_, Option<JoinedWorld>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the rank in its world. Fails after leaving, and in a forked child.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<JoinedWorld> {
        self.generation.check(py)?;
        let joined = self.joined().clone();
        joined.ok_or_else(|| match self.has_next.load(Ordering::Acquire) {
            true => {
                usage(py, "this generation of the world has ended", "use the world that `World.next` returns")
            }
            false => usage(py, "this world is closed", "join another one by `hexagram.init()`"),
        })
    }

    /// Keeps an object until it is closed, at the latest when the world is left. The destruction of a Python object
    /// does not close it, which would take until the other ranks do so, too.
    pub(crate) fn keep(&self, closes: Arc<dyn Closes>) {
        self.open().push(closes);
    }

    /// Records an engine, until it is dropped.
    pub(crate) fn watch(&self, engine: Weak<dyn Closes>) {
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(engine);
    }

    /// Returns the recorded engines.
    fn engines(&self) -> Vec<Arc<dyn Closes>> {
        let engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.iter().filter_map(Weak::upgrade).collect()
    }

    /// Closes a kept object.
    pub(crate) fn close(&self, py: Python<'_>, closes: Arc<dyn Closes>) -> PyResult<()> {
        if !self.generation.is_now() {
            return Ok(());
        }
        self.open().retain(|other| !Arc::ptr_eq(other, &closes));
        interruptible(py, move || closes.close())?.map_err(|error| exception(py, &error))
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<dyn Closes>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn world(&self) -> MutexGuard<'_, Option<Py<World>>> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the executor for paths between GPUs.
    pub(crate) fn keep_gpu_executor(&self, executor: Executor) {
        if let Some(joined) = &mut *self.joined() {
            joined.gpu_executor = Some(executor);
        }
    }

    /// Releases a group of one of the executors that is no longer used.
    pub(crate) fn release(&self, group: &GroupHandle, over: Over) {
        if self.generation.is_now()
            && let Some(joined) = &*self.joined()
            && let Some(executor) = joined.executor(over)
        {
            executor.release(group);
        }
    }

    /// Leaves the world when the operations in progress have ended, or were cancelled. If it was the last one of this
    /// process, waits until all worlds that it has left are gone.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let ended = self.begin_to_leave(py)?;
        if self.generation.is_now() && members().is_empty() {
            leaving::wait(py)?;
        }
        ended.map_err(|error| exception(py, &error))
    }

    /// Ends the operations in progress, and completes the rest on a thread: rank 0 of a world waits until the others
    /// have left it, too, and they may leave other worlds first.
    fn begin_to_leave(&self, py: Python<'_>) -> PyResult<Result<()>> {
        match self.depart() {
            Some(mut departure) => interruptible_then(py, move || (departure.end(), departure)),
            None => Ok(Ok(())),
        }
    }

    /// Makes the world closed for Python. Returns its parts, which have to end; `None` if it was closed before.
    fn depart(&self) -> Option<Departure> {
        if !self.generation.is_now() {
            return None;
        }
        members().retain(|member| !std::ptr::eq(&raw const **member, self));
        let as_python_has_it = self.world().take();
        drop(as_python_has_it);
        let JoinedWorld { executor, gpu_executor, world } = self.joined().take()?;
        let open = std::mem::take(&mut *self.open());
        let gave_up = self.gave_up.load(Ordering::Acquire);
        Some(Departure { open, executor, gpu_executor, world, gave_up, leaving: Leaving::begin() })
    }

    /// Notifies the other ranks that this one has failed, and ends its operations.
    fn give_up(&self, because: &str) {
        let joined = if self.generation.is_now() { self.joined().clone() } else { None };
        if let Some(joined) = joined {
            self.gave_up.store(true, Ordering::Release);
            joined.world.health().fail_self(because);
            for executor in [Some(&joined.executor), joined.gpu_executor.as_ref()].into_iter().flatten() {
                executor.abort(Error::usage(format!("this rank {because}"), "start it again"));
            }
        }
    }
}

/// Returns the world that this process has joined and not left, the first of several; `None` if there is none.
///
/// >>> hexagram.init()  # doctest: +SKIP
/// >>> hexagram.joined()  # doctest: +SKIP
/// World(rank 0 of 4, mixed)
#[pyfunction]
pub(crate) fn joined(py: Python<'_>) -> Option<Py<World>> {
    let all = members().clone();
    let mine = all.iter().filter(|member| member.generation.is_now());
    mine.filter_map(|member| member.world().as_ref().map(|world| world.clone_ref(py))).next()
}

/// Returns how many times the launcher has restarted this job. A program loads its newest checkpoint if it is above 0.
///
/// >>> hexagram.restarts()
/// 0
#[pyfunction]
pub(crate) fn restarts(py: Python<'_>) -> PyResult<usize> {
    hexagram::physical::world::restarts().map_err(|error| exception(py, &error))
}

/// Notifies the ranks of all worlds that this one has failed.
pub(crate) fn give_up_all(py: Python<'_>, because: &str) {
    let all = members().clone();
    py.detach(|| all.iter().for_each(|member| member.give_up(because)));
}

/// Leaves all worlds, when the interpreter ends; returns the first error, unless this rank has failed and has reported
/// why.
pub(crate) fn leave_all(py: Python<'_>, gave_up: bool) -> PyResult<()> {
    let all = members().clone();
    let mut first = Ok(());
    for member in all {
        let left = member.begin_to_leave(py)?;
        if !gave_up {
            first = first.and(left);
        }
    }
    leaving::wait(py)?;
    first.map_err(|error| exception(py, &error))
}

/// All ranks of one job, as seen by this process.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct World {
    member: Arc<WorldMember>,
    communicator: Py<Communicator>,
}

#[pymethods]
impl World {
    /// Joins the job described by the variables of the launcher: hexagram run, torchrun, mpirun or srun. `timeout` is
    /// the maximum wait for the other ranks (60), `deadline` that for later operations (300), in seconds. `transport`
    /// is `"mixed"` (shared memory within a host, TCP between hosts), `"shm"`, `"tcp"` or `"mpi"`; by default the value
    /// of the variable HEXAGRAM_TRANSPORT, or else `"mixed"`. `configuration` is a text with the settings of the
    /// program: ranks with different texts refuse to join.
    ///
    /// Raises `SetupError` without a launcher, or if a rank is refused or missing.
    #[classmethod]
    #[pyo3(signature = (*, transport = None, timeout = None, deadline = None, configuration = None))]
    fn join(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        transport: Option<&str>,
        timeout: Option<f64>,
        deadline: Option<f64>,
        configuration: Option<String>,
    ) -> PyResult<Py<Self>> {
        let options = join_options(py, transport, timeout, configuration)?;
        Self::start(py, deadline, move || hexagram::World::join(&options))
    }

    /// Joins the ranks that meet through a key-value store, as `rank` of `size`. Rank 0 stores its address and a secret
    /// there: any process that can read the store can join. Options and errors are those of `join`.
    #[staticmethod]
    #[pyo3(signature = (store, rank, size, *, transport = None, timeout = None, deadline = None, configuration = None))]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn join_through(
        py: Python<'_>,
        store: Py<PyAny>,
        #[pyo3(from_py_with = ranks)] rank: usize,
        #[pyo3(from_py_with = count)] size: usize,
        transport: Option<&str>,
        timeout: Option<f64>,
        deadline: Option<f64>,
        configuration: Option<String>,
    ) -> PyResult<Py<Self>> {
        let options = join_options(py, transport, timeout, configuration)?;
        let store = PythonStore::new(store);
        Self::start(py, deadline, move || hexagram::World::join_through(&store, rank, size, &options))
    }

    /// Returns the communicator of all ranks.
    #[getter]
    fn communicator(&self, py: Python<'_>) -> Py<Communicator> {
        self.communicator.clone_ref(py)
    }

    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.member.get(py)?.world.rank())
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.member.get(py)?.world.size())
    }

    #[getter]
    fn local_rank(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.member.get(py)?.world.local_rank())
    }

    #[getter]
    fn local_size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.member.get(py)?.world.local_size())
    }

    /// Returns the host of each rank, numbered from 0.
    #[getter]
    fn hosts(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.member.get(py)?.world.hosts().to_vec())
    }

    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.member.get(py)?.world.transport().to_string())
    }

    #[getter]
    fn deadline(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.member.get(py)?.world.deadline().as_secs_f64())
    }

    #[setter]
    fn set_deadline(&self, py: Python<'_>, deadline: f64) -> PyResult<()> {
        self.member.get(py)?.world.set_deadline(seconds(py, deadline)?);
        Ok(())
    }

    /// Returns the bytes (including headers), messages and bytes of payload that this rank has sent.
    #[getter]
    fn traffic(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let joined = self.member.get(py)?;
        let traffic = joined.world.traffic();
        Ok((traffic.bytes_sent(), traffic.messages_sent(), traffic.payload_sent()))
    }

    #[getter]
    fn is_closed(&self) -> bool {
        !self.member.generation.is_now() || self.member.joined().is_none()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.member.get(py) {
            Ok(JoinedWorld { world, .. }) => {
                format!("World(rank {} of {}, {})", world.rank(), world.size(), world.transport())
            }
            Err(_) => "World(closed)".to_owned(),
        }
    }

    /// Leaves the world when the operations in progress have ended. In the last world of this process, rank 0 waits until the
    /// others have also left. In any other world a thread waits, since the other ranks may leave their worlds in a different
    /// order.
    ///
    /// Raises `UsageError` if operations were still in progress after a while; they are cancelled.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.member.leave(py)
    }

    /// Ends the work of all ranks immediately: the others get `PeerFailed` with this reason, a verb phrase.
    #[pyo3(signature = (because = "gave up"))]
    fn abort(&self, py: Python<'_>, because: &str) {
        py.detach(|| self.member.give_up(because));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind, error, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyType>>,
        error: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (Some(kind), Some(error)) = (kind, error) else { return self.member.leave(py) };
        let because = format!("raised {}: {error}", kind.name()?);
        let because = because.trim_end_matches(": ").to_owned();
        py.detach(|| self.member.give_up(&because));
        // Keeps the exception that is being raised: it is more informative than one from leaving.
        match self.member.leave(py) {
            Err(left) if !left.is_instance_of::<PyException>(py) => Err(left),
            _ => Ok(()),
        }
    }
}

impl World {
    /// Returns the communicator of all ranks, on lane 0.
    pub(crate) fn all(&self) -> Communicator {
        self.communicator.get().lane(0)
    }

    /// Returns the membership of this process in the world.
    pub(crate) fn member(&self) -> &Arc<WorldMember> {
        &self.member
    }

    /// Joins with `join`, and starts the executor of operations.
    fn start(
        py: Python<'_>,
        deadline: Option<f64>,
        join: impl FnOnce() -> Result<hexagram::World> + Send + 'static,
    ) -> PyResult<Py<Self>> {
        let deadline = deadline.map(|deadline| seconds(py, deadline)).transpose()?;
        log::listen();
        let joined = interruptible(py, move || JoinedWorld::start(join()?, deadline))?;
        let joined = joined.map_err(|error: Error| exception(py, &error))?;
        let handle = joined.executor.world().clone();
        let member = Arc::new(WorldMember {
            generation: Generation::now(),
            joined: Mutex::new(Some(joined)),
            open: Mutex::default(),
            engines: Mutex::default(),
            gave_up: AtomicBool::new(false),
            has_next: AtomicBool::new(false),
            world: Mutex::default(),
        });
        members().push(Arc::clone(&member));
        let communicator = Py::new(py, Communicator::new(Arc::clone(&member), handle, Over::Host))?;
        let world = Py::new(py, World { member: Arc::clone(&member), communicator })?;
        *member.world() = Some(world.clone_ref(py));
        Ok(world)
    }
}

fn join_options(
    py: Python<'_>,
    transport: Option<&str>,
    timeout: Option<f64>,
    configuration: Option<String>,
) -> PyResult<JoinOptions> {
    let mut options =
        JoinOptions { configuration: configuration.unwrap_or_default(), ..JoinOptions::default() };
    match transport {
        Some(transport) => options.transport = transport.parse().map_err(|error| exception(py, &error))?,
        // A program that selects none leaves the choice to its user. Joining reports an invalid variable.
        None => {
            let said = std::env::var("HEXAGRAM_TRANSPORT").ok().and_then(|said| said.trim().parse().ok());
            options.transport = said.unwrap_or(options.transport);
        }
    }
    if let Some(timeout) = timeout {
        options.deadline = seconds(py, timeout)?;
    }
    Ok(options)
}

/// Returns a time in seconds. Fails if it is invalid.
pub(crate) fn seconds(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| usage(py, format!("{seconds} s is not a valid time limit"), "use a number above 0"))
}
