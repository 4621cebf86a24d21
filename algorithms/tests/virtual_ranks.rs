//! Ranks as threads of one world with a virtual clock; one of them runs at a time, in an order that depends only on
//! their waits.

use hexagram_algorithms::logical::runtime::{self, VirtualTime};
use hexagram_algorithms::logical::{Communicator, Result, World};
use std::sync::mpsc::channel;

/// Runs `body` on every rank, and returns the results in rank order. A rank that panics fails the test.
pub(crate) fn in_virtual_time<R: Send + 'static>(
    ranks: usize,
    body: impl Fn(&Communicator) -> Result<R> + Clone + Send + 'static,
) -> Vec<R> {
    VirtualTime::run(|| {
        let (results, result) = channel();
        for (rank, world) in World::threads(ranks).unwrap().into_iter().enumerate() {
            let results = results.clone();
            let body = body.clone();
            let run = move || {
                let _ = results.send((rank, Communicator::open(&world, 0).and_then(|comm| body(&comm))));
            };
            runtime::spawn("hexagram-test", run).unwrap();
        }
        // So that a rank that ends without a result ends this wait.
        drop(results);
        let mut results: Vec<_> = (0..ranks).map(|_| runtime::receive(&result).unwrap()).collect();
        results.sort_by_key(|(rank, _)| *rank);
        results.into_iter().map(|(_, result)| result.unwrap()).collect()
    })
}
