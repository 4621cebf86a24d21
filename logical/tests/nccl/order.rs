//! Order: ranks call the collectives of their GPUs in the same order, those of all lanes and groups. Where they do not, each
//! of them ends at its deadline, and no GPU waits.

use super::faults::{LIMIT, SOON};
use super::ranks::{buffer, can_have, numbers, together};
use hexagram_logical::{Buffer, Communicator, Error, ReduceOp, Result, TransportKind};
use hexagram_physical::device::cuda::Cuda;
use hexagram_physical::error::ErrorContext;
use hexagram_physical::testing::spawn;
use std::time::Instant;

const RANKS: usize = 3;

/// Runs ranks that sum two buffers over what `calls` returns, rank 1 in the other order, and expects that all of them
/// learn of it.
fn are_refused(calls: impl Fn(&Communicator) -> Result<Vec<Communicator>> + Sync) {
    if !can_have(RANKS) {
        return;
    }
    let started = Instant::now();
    let outcomes = spawn(TransportKind::Shm, RANKS, |world| {
        let comm = Communicator::open(&world, 0)?;
        let queue = Cuda::new(comm.rank())?.queue()?;
        assert_eq!(comm.attach(&queue)?, Some(TransportKind::Nccl));
        comm.set_deadline(5 * LIMIT);
        let calls = calls(&comm)?;
        let mut buffers: Vec<Buffer> = calls.iter().map(|_| buffer(&queue, &numbers(0, 1000))).collect();
        let mut all: Vec<_> =
            calls.iter().zip(&mut buffers).map(|(one, x)| one.all_reduce(x, ReduceOp::Sum)).collect();
        if comm.rank() == 1 {
            all.reverse();
        }
        comm.block_on(together(all))?;
        queue.check()
    });
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    let says_why = |outcome: &Result<()>| {
        let Err(error @ Error::Deadline { stragglers, .. }) = outcome else { return false };
        let is_elsewhere = |one: &ErrorContext| matches!(one, ErrorContext::Operation(..));
        stragglers.iter().any(|one| is_elsewhere(&one.context)) && error.to_string().contains("same order")
    };
    assert!(outcomes.iter().any(says_why), "{outcomes:?}");
}

#[test]
fn lanes_that_are_called_in_different_orders_are_an_error() {
    are_refused(|comm| Ok(vec![comm.lane(0), comm.lane(1)]));
}

#[test]
fn groups_that_are_called_in_different_orders_are_an_error() {
    are_refused(|comm| {
        let pair = comm.block_on(comm.subgroup(&[0, 1]))?;
        Ok(pair.into_iter().chain([comm.lane(0)]).collect())
    });
}
