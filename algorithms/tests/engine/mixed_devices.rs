//! Ranks with different devices train together: their final state has the bits of host ranks. The device is the one
//! under test, `HEXAGRAM_TEST_DEVICE`.

use super::late::{Place, bits, difference, is_timed, ranks, train};
use super::warmed_up::algorithms;
use hexagram_algorithms::AnyAlgorithm;
use hexagram_algorithms::logical::testing::{is_deep, queue, spawn};
use hexagram_algorithms::logical::{Communicator, Queue, TransportKind};

/// Sample for the gate: a sum of gradients, three codecs with and without memory, gossip, and rounds.
const SAMPLE: [&str; 6] = [
    "gradient-allreduce",
    "bytegrad",
    "signsgd-vote",
    "choco-sgd",
    "low-precision-decentralized",
    "local-sgd",
];

/// Returns true if an algorithm is in the sample.
fn is_tried(algorithm: &AnyAlgorithm) -> bool {
    let is_long = is_deep();
    (is_long || SAMPLE.contains(&algorithm.name())) && !is_timed(algorithm)
}

#[test]
fn one_rank_on_the_device_and_others_on_the_host_train_alike() {
    let mut failed = Vec::new();
    let host: Place<'_> = &Queue::host;
    let mut tried = Vec::new();
    for algorithm in algorithms().into_iter().filter(is_tried) {
        let trained = |transport: TransportKind, with_device: Option<usize>| {
            let run = |comm: Communicator| {
                let place = if with_device == Some(comm.rank()) { &queue } else { host };
                bits(&train(&comm, algorithm.clone(), place)?)
            };
            spawn(transport, ranks(&algorithm), run)
        };
        let expected = trained(TransportKind::Thread, None).unwrap();
        for (transport, rank) in [(TransportKind::Thread, 0), (TransportKind::Shm, 1)] {
            let why = match trained(transport, Some(rank)) {
                Err(error) => error.to_string(),
                Ok(found) if found == expected => continue,
                Ok(found) => difference(&expected, &found),
            };
            failed.push(format!("{algorithm:?} over {transport} with the device on rank {rank}: {why}"));
        }
        tried.push(algorithm.name());
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(SAMPLE.iter().all(|name| tried.contains(name)), "{tried:?} of {SAMPLE:?}");
}
