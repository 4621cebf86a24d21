//! The reactor, which one thread at a time drives: the communicators of an executor, and the jobs under way on them.

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

/// A job under way.
pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;
/// Begins a job on a communicator.
pub(super) type Begin = Box<dyn FnOnce(Communicator, &Rc<Groups>) -> Task + Send>;

/// A job that was submitted.
pub(super) struct Job {
    pub(super) group: u64,
    pub(super) options: JobOptions,
    pub(super) begin: Begin,
    pub(super) outcome: Arc<dyn Fail>,
}

/// Request of another thread to the driver.
pub(super) enum Command {
    Run(Job),
    Release(u64),
    Abort(Error),
}

/// Communicators of the groups, by number.
pub(super) struct Groups {
    next: Cell<u64>,
    comms: RefCell<HashMap<u64, Communicator>>,
    /// Hosts and leaders of those groups that were split into them.
    hierarchies: RefCell<HashMap<u64, Hierarchy>>,
}

impl Groups {
    /// Keeps a communicator, and returns its handle.
    pub(super) fn keep(&self, comm: Communicator) -> GroupHandle {
        let number = self.next.replace(self.next.get() + 1);
        let handle = GroupHandle::new(number, &comm);
        self.comms.borrow_mut().insert(number, comm);
        handle
    }

    /// Keeps a group once more, with its hosts and leaders, and returns the handle of that.
    pub(super) fn keep_hierarchy(&self, group: u64, hierarchy: Hierarchy) -> Result<GroupHandle> {
        let all = self.comms.borrow().get(&group).cloned();
        let handle = all.map(|all| self.keep(all)).ok_or_else(released)?;
        self.hierarchies.borrow_mut().insert(handle.number, hierarchy);
        Ok(handle)
    }

    /// Returns the hosts and leaders of a group. Fails unless it was split into them.
    pub(super) fn hierarchy(&self, group: u64) -> Result<Hierarchy> {
        self.hierarchies.borrow().get(&group).cloned().ok_or_else(|| {
            Error::usage("the group was not split into hosts", "submit the job to one of `submit_hierarchy`")
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
type Lane = (u64, usize);

struct Running {
    task: Task,
    lane: Option<Lane>,
    what: &'static str,
    outcome: Arc<dyn Fail>,
}

/// A job that waits for those before it on its lane.
struct Queued {
    job: Job,
    comm: Communicator,
}

/// Communicators, and the jobs under way on them.
pub(super) struct Reactor {
    comm: Communicator,
    groups: Rc<Groups>,
    /// Jobs that wait, for each lane on which one is running.
    lanes: HashMap<Lane, VecDeque<Queued>>,
    running: Vec<Running>,
}

// SAFETY: whoever has the reactor has all that counts its references without atomics or is written without a lock: the
// communicators of one endpoint, the endpoint, and the jobs, which hold clones of the former. `Executor::submit` forbids
// that a job holds anything else of that kind, or leaves any behind. The endpoints are of transports that
// `TransportKind::may_change_threads` names, and the wakers that they are polled with are replaced by the polls of the
// next thread. Paths between devices may not, and a communicator that moves gets none: see `Communicator::attach`. Over
// other transports the reactor stays on one thread, which makes and drops it.
unsafe impl Send for Reactor {}

impl Reactor {
    /// Returns one for a communicator of the world, and the handle of that.
    pub(super) fn new(comm: Communicator) -> (Self, GroupHandle) {
        let groups = Rc::new(Groups {
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

    /// Carries out what other threads have asked for, and polls every job once; returns how many have ended.
    pub(super) fn step(&mut self, commands: Vec<Command>, context: &mut Context<'_>) -> usize {
        let mut ended = 0;
        for command in commands {
            match command {
                Command::Run(job) => ended += self.accept(job),
                Command::Release(group) => self.groups.release(group),
                Command::Abort(error) => ended += self.abort(&error),
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

    /// Begins a job, or puts it behind those of its lane; returns how many have ended by that.
    fn accept(&mut self, job: Job) -> usize {
        let comm = self.groups.comms.borrow().get(&job.group).cloned();
        let Some(comm) = comm else {
            job.outcome.fail(released());
            return 1;
        };
        let job = Queued { job, comm };
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

    fn begin(&mut self, queued: Queued) {
        let lane = queued.lane();
        let Queued { job, comm } = queued;
        let comm = lane.map_or_else(|| comm.clone(), |(_, lane)| comm.lane(lane));
        let comm = job.options.deadline.map_or_else(|| comm.clone(), |deadline| comm.with_deadline(deadline));
        let task = (job.begin)(comm, &self.groups);
        self.running.push(Running { task, lane, what: job.options.what, outcome: job.outcome });
    }

    /// Polls every job once, and begins those that follow on a lane; returns how many have ended.
    fn poll(&mut self, context: &mut Context<'_>) -> usize {
        let mut free: Vec<Option<Lane>> = Vec::new();
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

    /// Cancels everything under way; returns how many jobs that were.
    fn abort(&mut self, error: &Error) -> usize {
        self.comm.give_up(error);
        let running = std::mem::take(&mut self.running);
        let queued = std::mem::take(&mut self.lanes).into_values().flatten();
        let mut ended = 0;
        let waiting = queued.map(|Queued { job: Job { begin, outcome, .. }, .. }| {
            drop(begin);
            outcome
        });
        let begun = running.into_iter().map(|Running { task, outcome, .. }| {
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

impl Queued {
    fn lane(&self) -> Option<Lane> {
        match self.job.options.order {
            Order::Lane(lane) => Some((self.job.group, lane)),
            Order::AtOnce => None,
        }
    }
}

impl Running {
    /// Polls the job; returns true if it has ended.
    fn poll(&mut self, comm: &Communicator, context: &mut Context<'_>) -> bool {
        match catch_unwind(AssertUnwindSafe(|| self.task.as_mut().poll(context))) {
            Ok(poll) => poll.is_ready(),
            Err(panic) => {
                let error = Error::panicked(self.what, &*panic);
                // The other ranks count on it.
                comm.give_up(&error);
                // What it held goes before anybody learns of its end.
                self.task = Box::pin(std::future::pending());
                self.outcome.fail(error);
                true
            }
        }
    }
}
