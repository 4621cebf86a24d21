//! Queues of the engine's buckets.
//!
//! A framework's backward pass runs ahead of the device: every gradient's copy is enqueued, behind the work that computes
//! it, long before that is done. On one queue a bucket's communication would wait for copies of later buckets, and
//! overlap with nothing. So buckets are dealt out among several queues.

use super::{EngineOptions, programs};
use hexagram_logical::{Queue, Result};
use std::time::Duration;

/// Number of queues: buckets this far apart are hardly ever under way at once.
const QUEUES: usize = 8;

/// Queues among which buckets are dealt out; the host's is one.
#[derive(Clone)]
pub(super) struct Queues(Vec<Queue>);

impl Queues {
    /// Makes the queues of the device that the options name, for whose work the program waits at most `limit`, and its
    /// programs ready.
    pub(super) fn new(options: &EngineOptions, limit: Duration) -> Result<Self> {
        let first = &options.queue;
        first.set_limit(limit);
        programs::prepare(first);
        let others = if first.is_host() { 0 } else { QUEUES - 1 };
        let others = (0..others).map(|_| first.another());
        Ok(Queues(std::iter::once(Ok(first.clone())).chain(others).collect::<Result<_>>()?))
    }

    /// Returns the queue of a bucket.
    pub(super) fn of(&self, bucket: usize) -> &Queue {
        &self.0[bucket % self.0.len()]
    }

    /// Waits until all of them have done what was enqueued so far.
    ///
    /// # Errors
    /// As [`Queue::check`], of the first that has failed.
    pub(super) fn check(&self) -> Result<()> {
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
