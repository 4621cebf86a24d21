//! An executor: one endpoint that any number of threads share. Use it if operations come from threads that your
//! program does not choose, as in Python. Otherwise, a [`Communicator`] per thread is simpler, and as fast.
//!
//! A [`Communicator`] stays on its thread. An [`Executor`] may be cloned and sent to any thread: [`Executor::submit`]
//! takes a job, and returns a [`Ticket`] with which any thread waits for the outcome. Waiting threads drive: a thread
//! in [`Ticket::wait`] moves the bytes of all jobs, unless another thread does, and hands over to the next one when
//! its own job has ended. While no thread waits, a background thread drives.
//!
//! # Order
//! Jobs of one group and lane run one after another, in the order of submission, so that ranks that submit in the
//! same order match. Jobs of different groups and lanes run concurrently, and so do those with [`Order::AtOnce`],
//! which messages between two ranks require.
//!
//! # Completion elsewhere
//! The callback of [`Ticket::on_done`] runs on the driving thread. It must not block on a lock whose holder may be waiting for
//! a job, such as the lock of the Python interpreter. A binding should send a message from its callback to a separate thread,
//! which takes the lock and runs the user callback. The same holds for the contents of a job: a Python object that owns its
//! memory is not dropped with the job, but sent to that thread.
//!
//! # Failures
//! Failures are those of a communicator: after a failed operation, all jobs of all groups fail. A panic in a job is
//! caught, and ends the work of all ranks like an error. In a process that was forked from the one that started the
//! executor, every call returns [`Error::Usage`].

mod core;
mod options;
mod reactor;
mod ticket;

pub use options::{Awaited, Driving, ExecutorOptions, JobOptions, Order};
pub use ticket::Ticket;

use self::core::Core;
use self::reactor::{BeginJob, GroupCommunicators, JobFuture, SubmittedJob};
use self::ticket::JobOutcome;
use crate::{Channel, Communicator, Error, Hierarchy, Result, World};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// One endpoint and all groups over it, for any number of threads. Cheap to clone.
///
/// Dropping the last clone waits for the running jobs, at most for [`ExecutorOptions::linger`]; the rest is
/// abandoned, and the other ranks are notified.
///
/// ```
/// use hexagram_logical::executor::{Executor, ExecutorOptions, JobOptions};
/// use hexagram_logical::{Buffer, ReduceOp, World};
///
/// let ranks: Vec<_> = World::threads(2)?
///     .into_iter()
///     .map(|world| {
///         std::thread::spawn(move || {
///             let executor = Executor::start(&world, 0, ExecutorOptions::default())?;
///             let mut buffer = Buffer::from_slice(&[world.rank() as f32])?;
///             // SAFETY: the job keeps nothing of the communicator, and nothing that is bound to a thread.
///             let sum = unsafe {
///                 executor.submit(executor.world(), JobOptions::default(), async move |comm| {
///                     comm.all_reduce(&mut buffer, ReduceOp::Sum).await?;
///                     buffer.host::<f32>().map(|sum| sum[0])
///                 })
///             };
///             // … compute …
///             sum.wait(None).unwrap_or(Ok(f32::NAN))
///         })
///     })
///     .collect();
/// for rank in ranks {
///     assert_eq!(rank.join().unwrap()?, 1.0);
/// }
/// # Ok::<(), hexagram_logical::Error>(())
/// ```
#[derive(Clone)]
pub struct Executor(Arc<ExecutorOwner>);

/// State shared by the clones of an executor: when it is dropped, the executor ends.
struct ExecutorOwner {
    core: Arc<Core>,
    world: GroupHandle,
}

impl Drop for ExecutorOwner {
    fn drop(&mut self) {
        Core::end(&self.core);
    }
}

/// Handle of a group whose communicator an executor keeps, until it is [released](Executor::release).
#[derive(Clone)]
pub struct GroupHandle {
    number: u64,
    rank: usize,
    world_ranks: Arc<[usize]>,
}

impl GroupHandle {
    fn new(number: u64, comm: &Communicator) -> Self {
        GroupHandle { number, rank: comm.rank(), world_ranks: comm.world_ranks().into() }
    }

    /// Returns this rank in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks in the group.
    pub fn size(&self) -> usize {
        self.world_ranks.len()
    }

    /// Returns the rank in the world of each rank of the group.
    pub fn world_ranks(&self) -> &[usize] {
        &self.world_ranks
    }
}

impl fmt::Debug for GroupHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {} of the ranks {:?}", self.number, self.world_ranks)
    }
}

impl Executor {
    /// Opens a communicator of all ranks of `world`, over a channel that the other ranks must open, too, and starts
    /// the background thread. A collective call.
    ///
    /// # Errors
    /// As [`Communicator::open`]; [`Error::System`] if no thread can be started.
    pub fn start(world: &World, channel: u16, options: ExecutorOptions) -> Result<Self> {
        let transport = world.transport();
        let world = world.clone();
        let (core, world) = Core::start(transport, options, move || Communicator::open(&world, channel))?;
        Ok(Executor(Arc::new(ExecutorOwner { core, world })))
    }

    /// Opens a communicator over a channel that a group has agreed on, and starts the background thread. The ranks of
    /// that group are [all ranks](Self::world) of the executor. A collective call.
    ///
    /// # Errors
    /// As [`Channel::open`]; [`Error::System`] if no thread can be started.
    pub fn over(channel: Channel, options: ExecutorOptions) -> Result<Self> {
        let (core, world) = Core::start(channel.transport(), options, move || channel.open())?;
        Ok(Executor(Arc::new(ExecutorOwner { core, world })))
    }

    /// Returns the group of all ranks.
    pub fn world(&self) -> &GroupHandle {
        &self.0.world
    }

    /// Submits a job. It runs on the communicator of `group` with these `options`, as soon as a thread drives. The
    /// driving thread drops the job, with its contents, before its ticket completes.
    ///
    /// The ticket returns the failures of the job, and [`Error::Usage`] for a group that was released, after
    /// [`Executor::shutdown`], and in a forked process.
    ///
    /// # Safety
    /// Different threads may poll the job, one at a time. Its state across an `.await` must not be bound to a thread,
    /// as a lock guard or an `Rc` shared outside the job is. The communicator and the return values of its methods
    /// are exceptions. No clone of the communicator, and no value that was made from it and is bound to a thread, may
    /// outlive the job.
    pub unsafe fn submit<T: Send + 'static>(
        &self,
        group: &GroupHandle,
        options: JobOptions,
        job: impl AsyncFnOnce(&Communicator) -> Result<T> + Send + 'static,
    ) -> Ticket<T> {
        let body =
            |comm: Communicator, _: &Rc<GroupCommunicators>, outcome: Arc<JobOutcome<T>>| -> JobFuture {
                Box::pin(async move {
                    let result = job(&comm).await;
                    drop(comm);
                    outcome.complete(result);
                })
            };
        self.begin(group, options, body)
    }

    /// Submits a job that creates a group, as [`Communicator::split`] does, and keeps its communicator. The ticket
    /// returns its handle; `None` if this rank is not in the group.
    ///
    /// # Safety
    /// As [`Executor::submit`]; in addition, the job must return a communicator over the same endpoint.
    pub unsafe fn submit_group(
        &self,
        group: &GroupHandle,
        options: JobOptions,
        job: impl AsyncFnOnce(&Communicator) -> Result<Option<Communicator>> + Send + 'static,
    ) -> Ticket<Option<GroupHandle>> {
        let body =
            |comm: Communicator, groups: &Rc<GroupCommunicators>, outcome: Arc<JobOutcome<_>>| -> JobFuture {
                let groups = Rc::clone(groups);
                Box::pin(async move {
                    let made = job(&comm).await;
                    drop(comm);
                    outcome.complete(made.map(|made| made.map(|made| groups.keep(made))));
                })
            };
        self.begin(group, options, body)
    }

    /// Divides a group into its hosts and their leaders, as [`Communicator::hierarchy`] does, and keeps them: the
    /// ticket returns the handle for [`Executor::submit_in_hierarchy`]. A collective call of the group.
    pub fn submit_hierarchy(&self, group: &GroupHandle, options: JobOptions) -> Ticket<GroupHandle> {
        let number = group.number;
        let body = move |comm: Communicator,
                         groups: &Rc<GroupCommunicators>,
                         outcome: Arc<JobOutcome<_>>|
              -> JobFuture {
            let groups = Rc::clone(groups);
            Box::pin(async move {
                let made = comm.hierarchy().await;
                drop(comm);
                outcome.complete(made.and_then(|hierarchy| groups.keep_hierarchy(number, hierarchy)));
            })
        };
        self.begin(group, options, body)
    }

    /// Submits a job that runs on the hosts and leaders of a group from [`Executor::submit_hierarchy`].
    ///
    /// Failures are those of [`Executor::submit`], and [`Error::Usage`] for a group that was not divided into hosts.
    ///
    /// # Safety
    /// As [`Executor::submit`], with the hierarchy instead of the communicator.
    pub unsafe fn submit_in_hierarchy<T: Send + 'static>(
        &self,
        group: &GroupHandle,
        options: JobOptions,
        job: impl AsyncFnOnce(&Hierarchy) -> Result<T> + Send + 'static,
    ) -> Ticket<T> {
        let number = group.number;
        let lane = match options.order {
            Order::Lane(lane) => lane,
            Order::AtOnce => 0,
        };
        let body = move |comm: Communicator,
                         groups: &Rc<GroupCommunicators>,
                         outcome: Arc<JobOutcome<T>>|
              -> JobFuture {
            let hierarchy = groups.hierarchy(number);
            Box::pin(async move {
                let result = match hierarchy {
                    Ok(hierarchy) => {
                        let hierarchy = hierarchy.lane(lane).with_deadline(comm.deadline());
                        job(&hierarchy).await
                    }
                    Err(error) => Err(error),
                };
                drop(comm);
                outcome.complete(result);
            })
        };
        self.begin(group, options, body)
    }

    /// Releases a group: jobs that were submitted before still run, later ones fail. The group of all ranks stays.
    pub fn release(&self, group: &GroupHandle) {
        if group.number != self.world().number {
            self.0.core.release(group.number);
        }
    }

    /// Ends the work of all ranks: running jobs fail with `error`, later ones with [`Error::Poisoned`], and the other
    /// ranks are notified of `error`.
    pub fn abort(&self, error: Error) {
        self.0.core.abort(error);
    }

    /// Waits for the running jobs, at most for `limit`, and closes the endpoint. The rest is abandoned, and the other
    /// ranks are notified. Further jobs fail; a second call has no effect.
    ///
    /// # Errors
    /// [`Error::Usage`] if jobs were abandoned, in a job or a callback of this executor, and in a forked process.
    pub fn shutdown(&self, limit: Duration) -> Result<()> {
        self.0.core.shutdown(limit)
    }

    fn begin<T: Send + 'static>(
        &self,
        group: &GroupHandle,
        options: JobOptions,
        body: impl FnOnce(Communicator, &Rc<GroupCommunicators>, Arc<JobOutcome<T>>) -> JobFuture + Send + 'static,
    ) -> Ticket<T> {
        let core = &self.0.core;
        let outcome = Arc::new(JobOutcome::default());
        let ended = Arc::clone(&outcome);
        let begin: BeginJob = Box::new(move |comm, groups| body(comm, groups, ended));
        let job =
            SubmittedJob { group: group.number, options, begin, outcome: Arc::clone(&outcome) as Arc<_> };
        core.submit(job);
        Ticket::new(Arc::clone(core), outcome)
    }
}

#[cfg(test)]
mod tests;
