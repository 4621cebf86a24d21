//! Options of an executor and of its jobs.

use std::time::Duration;

/// Options of an [`Executor`](super::Executor).
#[derive(Debug, Clone, Copy)]
pub struct ExecutorOptions {
    /// Longest time for which dropping the last clone waits for running jobs (5 s).
    pub linger: Duration,
    /// Threads that drive ([`Driving::Waiting`]). Must be the same on all ranks.
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
    /// Any waiting thread; the background thread only while no thread waits. Device memory travels through the host.
    /// Over transports whose endpoints stay on a thread (mpi, and those of other crates), this is
    /// [`Driving::OneThread`].
    Waiting,
    /// The background thread alone, so that a job with a waiting caller takes two additional thread switches. Devices
    /// with a path of their own need it: [`Communicator::attach`](crate::Communicator::attach).
    OneThread,
}

/// Options of a job.
#[derive(Debug, Clone, Copy)]
pub struct JobOptions {
    /// Place among the jobs of its group (lane 0).
    pub order: Order,
    /// Deadline of its operations, instead of that of the [world](crate::World::deadline): an operation fails if none
    /// of its bytes move for this time.
    pub deadline: Option<Duration>,
    /// Time at which the caller waits for it (later).
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
    /// Immediately, alongside all others: for messages between two ranks. They begin in the order of submission.
    AtOnce,
}

/// Time at which the caller waits for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// At some time, or never: the background thread begins it.
    Later,
    /// Immediately. No other thread is woken, so the waiting thread has the job to itself. It may make no progress before
    /// [`Ticket::wait`].
    ///
    /// [`Ticket::wait`]: super::Ticket::wait
    AtOnce,
}
