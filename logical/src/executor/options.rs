//! Options of an executor and of its jobs.

use std::time::Duration;

/// Options of an [`Executor`](super::Executor).
#[derive(Debug, Clone, Copy)]
pub struct ExecutorOptions {
    /// Longest time for which dropping the last clone waits for jobs under way (5 s).
    pub linger: Duration,
    /// Threads that drive ([`Driving::Waiting`]). The same on all ranks.
    pub driving: Driving,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        ExecutorOptions { linger: Duration::from_secs(5), driving: Driving::Waiting }
    }
}

/// Threads that drive the jobs of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driving {
    /// Any thread that waits; the executor's own only while nobody does. Memory of devices goes by way of the host. Over
    /// transports whose endpoints stay on a thread (mpi, and those of other crates), this is [`Driving::OneThread`].
    Waiting,
    /// The executor's own thread alone, so that a job that somebody waits for takes two changes of thread more. Devices
    /// need it where they have a path of their own: [`Communicator::attach`](crate::Communicator::attach).
    OneThread,
}

/// Options of a job.
#[derive(Debug, Clone, Copy)]
pub struct JobOptions {
    /// Place among the jobs of its group (lane 0).
    pub order: Order,
    /// Longest time in which no byte of one of its operations moves before that fails, in place of that of the
    /// [world](crate::World::deadline).
    pub deadline: Option<Duration>,
    /// Time at which somebody waits for it (later).
    pub awaited: Awaited,
    /// Name in errors: `all_reduce`.
    pub what: &'static str,
}

impl Default for JobOptions {
    fn default() -> Self {
        JobOptions { order: Order::Lane(0), deadline: None, awaited: Awaited::Later, what: "a job" }
    }
}

/// Place of a job among those of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// After the jobs that were submitted to this lane of the group before it.
    Lane(usize),
    /// At once, beside all others: for messages between two ranks. They begin in the order in which they were submitted.
    AtOnce,
}

/// Time at which somebody waits for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// At some time, or never: the executor's own thread begins it.
    Later,
    /// At once: no other thread is woken, so that the one that waits has the job to itself. Until [`Ticket::wait`] nothing
    /// may happen.
    ///
    /// [`Ticket::wait`]: super::Ticket::wait
    AtOnce,
}
