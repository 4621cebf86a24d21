//! The reactor, which one thread at a time drives: the communicators of an executor, and the running jobs.

use super::GroupHandle;
use super::options::{JobOptions, Order};
use super::ticket::Fail;
use crate::{Communicator, Error, Hierarchy, Result};
use hexagram_physical::transport::Transport;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

/// A running job.
pub(super) type JobFuture = Pin<Box<dyn Future<Output = ()>>>;
/// Begins a job on a communicator.
pub(super) type BeginJob = Box<dyn FnOnce(Communicator, &Rc<GroupCommunicators>) -> JobFuture + Send>;

/// A submitted job.
pub(super) struct SubmittedJob {
    pub(super) group: u64,
    pub(super) options: JobOptions,
    pub(super) begin: BeginJob,
    pub(super) outcome: Arc<dyn Fail>,
}

/// Request of another thread to the driving thread.
pub(super) enum ReactorCommand {
    Run(SubmittedJob),
    Release(u64),
    Abort(Error),
}

/// Communicators of the groups, by number.
pub(super) struct GroupCommunicators {
    next: Cell<u64>,
    comms: RefCell<HashMap<u64, Communicator>>,
    /// Hosts and leaders of those groups that were divided into them.
    hierarchies: RefCell<HashMap<u64, Hierarchy>>,
}

impl GroupCommunicators {
    /// Keeps a communicator, and returns its handle.
    pub(super) fn keep(&self, comm: Communicator) -> GroupHandle {
        let number = self.next.replace(self.next.get() + 1);
        let handle = GroupHandle::new(number, &comm);
        self.comms.borrow_mut().insert(number, comm);
        handle
    }

    /// Keeps a group with its hosts and leaders, as a further group, and returns the handle of the new group.
    pub(super) fn keep_hierarchy(&self, group: u64, hierarchy: Hierarchy) -> Result<GroupHandle> {
        let all = self.comms.borrow().get(&group).cloned();
        let handle = all.map(|all| self.keep(all)).ok_or_else(released)?;
        self.hierarchies.borrow_mut().insert(handle.number, hierarchy);
        Ok(handle)
    }

    /// Returns the hosts and leaders of a group. Fails unless it was divided into them.
    pub(super) fn hierarchy(&self, group: u64) -> Result<Hierarchy> {
        self.hierarchies.borrow().get(&group).cloned().ok_or_else(|| {
            Error::usage(
                "the group was not split into hosts",
                "submit the job to a group of `submit_hierarchy`",
            )
        })
    }

    fn release(&self, group: u64) {
        let comm = self.comms.borrow_mut().remove(&group);
        let hierarchy = self.hierarchies.borrow_mut().remove(&group);
        drop((comm, hierarchy));
    }
}

fn released() -> Error {
    Error::usage("the group was released", "release a group after its last use")
}

/// A group and a lane of it.
type GroupLane = (u64, usize);

struct RunningJob {
    task: JobFuture,
    lane: Option<GroupLane>,
    what: &'static str,
    outcome: Arc<dyn Fail>,
}

/// A job that waits for earlier ones on its lane.
struct QueuedJob {
    job: SubmittedJob,
    comm: Communicator,
}

/// Communicators, and the running jobs.
pub(super) struct Reactor {
    comm: Communicator,
    groups: Rc<GroupCommunicators>,
    /// Waiting jobs, for each lane with a running one.
    lanes: HashMap<GroupLane, VecDeque<QueuedJob>>,
    running: Vec<RunningJob>,
}

// SAFETY: the thread that has the reactor has all values that count references without atomics or are written without
// a lock: the communicators of one endpoint, the endpoint, and the jobs, which hold clones of the former.
// `Executor::submit` forbids that a job holds any other such value, or leaves one behind. The endpoints belong to
// transports that `TransportKind::may_change_threads` allows, and the polls of the next thread replace the wakers
// that were registered with them. Paths between devices may not move, and a communicator that moves gets none: see
// `Communicator::attach`. Over other transports the reactor stays on one thread, which creates and drops it.
unsafe impl Send for Reactor {}

impl Reactor {
    /// Returns a reactor for a communicator of the world, and the handle of that communicator.
    pub(super) fn new(comm: Communicator) -> (Self, GroupHandle) {
        let groups = Rc::new(GroupCommunicators {
            next: Cell::new(0),
            comms: RefCell::default(),
            hierarchies: RefCell::default(),
        });
        let world = groups.keep(comm.clone());
        (Reactor { comm, groups, lanes: HashMap::new(), running: Vec::new() }, world)
    }

    pub(super) fn endpoint(&self) -> &dyn Transport {
        self.comm.endpoint()
    }

    /// Executes the requests of other threads, and polls every job once; returns the number of ended jobs.
    pub(super) fn step(&mut self, commands: Vec<ReactorCommand>, context: &mut Context<'_>) -> usize {
        let mut ended = 0;
        for command in commands {
            match command {
                ReactorCommand::Run(job) => ended += self.accept(job),
                ReactorCommand::Release(group) => self.groups.release(group),
                ReactorCommand::Abort(error) => ended += self.abort(&error),
            }
        }
        loop {
            let before = ended;
            ended += self.poll(context);
            if ended == before {
                return ended;
            }
        }
    }

    /// Begins a job, or queues it on its lane; returns the number of jobs that this has ended.
    fn accept(&mut self, job: SubmittedJob) -> usize {
        let comm = self.groups.comms.borrow().get(&job.group).cloned();
        let Some(comm) = comm else {
            job.outcome.fail(released());
            return 1;
        };
        let job = QueuedJob { job, comm };
        match job.lane() {
            None => self.begin(job),
            Some(lane) => match self.lanes.get_mut(&lane) {
                Some(queue) => queue.push_back(job),
                None => {
                    self.lanes.insert(lane, VecDeque::new());
                    self.begin(job);
                }
            },
        }
        0
    }

    fn begin(&mut self, queued: QueuedJob) {
        let lane = queued.lane();
        let QueuedJob { job, comm } = queued;
        let comm = lane.map_or_else(|| comm.clone(), |(_, lane)| comm.lane(lane));
        let comm = job.options.deadline.map_or_else(|| comm.clone(), |deadline| comm.with_deadline(deadline));
        let task = (job.begin)(comm, &self.groups);
        self.running.push(RunningJob { task, lane, what: job.options.what, outcome: job.outcome });
    }

    /// Polls every job once, and begins those that follow on a lane; returns the number of ended jobs.
    fn poll(&mut self, context: &mut Context<'_>) -> usize {
        let mut free: Vec<Option<GroupLane>> = Vec::new();
        let comm = &self.comm;
        self.running.retain_mut(|running| {
            let is_over = running.poll(comm, context);
            if is_over {
                free.push(running.lane);
            }
            !is_over
        });
        let ended = free.len();
        for lane in free.into_iter().flatten() {
            let next = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front);
            match next {
                Some(next) => self.begin(next),
                None => drop(self.lanes.remove(&lane)),
            }
        }
        ended
    }

    /// Cancels all jobs; returns their number.
    fn abort(&mut self, error: &Error) -> usize {
        self.comm.give_up(error);
        let running = std::mem::take(&mut self.running);
        let queued = std::mem::take(&mut self.lanes).into_values().flatten();
        let mut ended = 0;
        let waiting = queued.map(|QueuedJob { job: SubmittedJob { begin, outcome, .. }, .. }| {
            drop(begin);
            outcome
        });
        let begun = running.into_iter().map(|RunningJob { task, outcome, .. }| {
            drop(task);
            outcome
        });
        for outcome in begun.chain(waiting) {
            outcome.fail(error.clone());
            ended += 1;
        }
        ended
    }
}

impl QueuedJob {
    fn lane(&self) -> Option<GroupLane> {
        match self.job.options.order {
            Order::Lane(lane) => Some((self.job.group, lane)),
            Order::AtOnce => None,
        }
    }
}

impl RunningJob {
    /// Polls the job; returns true if it has ended.
    fn poll(&mut self, comm: &Communicator, context: &mut Context<'_>) -> bool {
        match catch_unwind(AssertUnwindSafe(|| self.task.as_mut().poll(context))) {
            Ok(poll) => poll.is_ready(),
            Err(panic) => {
                let error = Error::panicked(self.what, &*panic);
                // The other ranks rely on it.
                comm.give_up(&error);
                // Its contents are dropped before any thread is notified of its end.
                self.task = Box::pin(std::future::pending());
                self.outcome.fail(error);
                true
            }
        }
    }
}
