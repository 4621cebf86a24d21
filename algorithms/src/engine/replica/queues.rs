//! Queues of the engine buckets.
//!
//! The backward pass of a framework runs ahead of the device: the copy of every gradient is enqueued, behind the work
//! that computes it, long before that work is done. On one queue the communication of a bucket would wait for copies of
//! later buckets, without overlap. So buckets are distributed over several queues.

use super::programs;
use crate::engine::EngineOptions;
use hexagram_logical::{Queue, Result};
use std::time::Duration;

/// Number of queues: buckets this far apart are rarely in progress at the same time.
const QUEUES: usize = 8;

/// Queues over which buckets are distributed; the host has one.
#[derive(Clone)]
pub(crate) struct Queues(Vec<Queue>);

impl Queues {
    /// Creates the queues of the device in the options, and loads its programs. The program waits at most `limit` for
    /// the work of these queues.
    pub(crate) fn new(options: &EngineOptions, limit: Duration) -> Result<Self> {
        let first = &options.queue;
        first.set_limit(limit);
        programs::prepare(first);
        let others = if first.is_host() { 0 } else { QUEUES - 1 };
        let others = (0..others).map(|_| first.another());
        Ok(Queues(std::iter::once(Ok(first.clone())).chain(others).collect::<Result<_>>()?))
    }

    /// Returns the queue of a bucket.
    pub(crate) fn of(&self, bucket: usize) -> &Queue {
        &self.0[bucket % self.0.len()]
    }

    /// Waits until all of them have completed the work enqueued so far.
    ///
    /// # Errors
    /// As [`Queue::check`], for the first queue that has failed.
    pub(crate) fn check(&self) -> Result<()> {
        let outcomes: Vec<Result<()>> = self.0.iter().map(Queue::check).collect();
        outcomes.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram_logical::testing::Late;

    #[test]
    fn buckets_beside_each_other_wait_for_nothing_of_each_other() {
        let late = Late::new(1);
        let options = EngineOptions { queue: late.queue(), ..EngineOptions::default() };
        let queues = Queues::new(&options, Duration::from_secs(60)).unwrap();
        assert!(*queues.of(0) == options.queue && queues.of(QUEUES) == queues.of(0));
        assert!((1..QUEUES).all(|bucket| queues.of(bucket) != queues.of(bucket - 1)));
        let host = Queues::new(&EngineOptions::default(), Duration::from_secs(60)).unwrap();
        assert!((0..20).all(|bucket| host.of(bucket).is_host()));
    }
}
