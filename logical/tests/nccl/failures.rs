//! Failures: ranks that disagree, and ranks that end, are named by all others.

use super::ranks::{buffer, can_have, numbers};
use hexagram_logical::{Communicator, Error, ReduceOp, Result, TransportKind};
use hexagram_physical::device::cuda::Cuda;
use hexagram_physical::testing::spawn;
use std::time::{Duration, Instant};

/// What each of three ranks whose GPUs NCCL connects returns.
fn outcomes(
    body: impl Fn(&Communicator, &mut hexagram_logical::Buffer) -> Result<()> + Sync,
) -> Vec<Result<()>> {
    if !can_have(3) {
        return Vec::new();
    }
    spawn(TransportKind::Shm, 3, |world| {
        let comm = Communicator::open(&world, 0)?;
        let queue = Cuda::new(comm.rank())?.queue()?;
        assert_eq!(comm.attach(&queue)?, Some(TransportKind::Nccl));
        let mut x = buffer(&queue, &numbers(comm.rank(), 1000));
        comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum))?;
        body(&comm, &mut x)
    })
}

#[test]
fn ranks_that_call_different_collectives_hear_of_it() {
    let outcomes = outcomes(|comm, x| {
        let op = if comm.rank() == 1 { ReduceOp::Product } else { ReduceOp::Sum };
        comm.block_on(comm.all_reduce(x, op))
    });
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
    let is_mismatch = |outcome: &Result<()>| matches!(outcome, Err(Error::Mismatch { .. }));
    assert!(outcomes.is_empty() || outcomes.iter().any(is_mismatch), "{outcomes:?}");
}

#[test]
fn messages_of_different_lengths_are_a_mismatch() {
    let outcomes = outcomes(|comm, x| {
        let mut short = buffer(&x.queue(), &numbers(0, 999));
        let all = if comm.rank() == 1 { &mut short } else { x };
        comm.block_on(comm.all_reduce(all, ReduceOp::Max))
    });
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
}

#[test]
fn a_rank_that_leaves_is_named() {
    let started = Instant::now();
    let outcomes = outcomes(|comm, x| {
        if comm.rank() == 2 {
            let error = Error::usage("this rank has had enough", "ask another one");
            comm.give_up(&error);
            return Err(error);
        }
        comm.block_on(comm.all_reduce(x, ReduceOp::Sum))?;
        x.queue().check()
    });
    for outcome in outcomes.iter().take(2) {
        let Err(Error::PeerFailed { culprit, .. }) = outcome else { panic!("{outcomes:?}") };
        assert_eq!(culprit.rank, 2);
    }
    assert!(started.elapsed() < Duration::from_secs(60));
}
