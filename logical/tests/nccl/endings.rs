//! Ends of communicators: of a rank that leaves early, and of a process within one. Each program here runs in a process of
//! its own, over a fake NCCL that takes its time.

use super::faults::{LIMIT, RANKS, SOON, passes};
use super::ranks::buffer;
use hexagram_logical::{Communicator, Error, ReduceOp, TransportKind};
use hexagram_physical::device::cuda::Cuda;
use hexagram_physical::testing::spawn;
use std::sync::{Condvar, Mutex};

/// NCCL keeps a rank as long as others of its host have connections to it.
#[test]
fn a_rank_that_leaves_early_does_not_wait_for_those_that_stay() {
    passes(("seed=2", "seed=2,proxy=1"), "endings::leaves_early");
}

#[test]
#[ignore = "needs an NCCL whose ranks wait for each other"]
fn leaves_early() {
    let has_left = Mutex::new(false);
    let change = Condvar::new();
    let outcomes = spawn(TransportKind::Shm, RANKS, |world| {
        let comm = Communicator::open(&world, 0)?;
        let queue = Cuda::new(comm.rank())?.queue()?;
        comm.attach(&queue)?;
        let mut x = buffer(&queue, &[1f32, 2.0]);
        comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum))?;
        assert_eq!(*x.host::<f32>()?, [3.0, 6.0]);
        let rank = comm.rank();
        if rank == 0 {
            // The world, too, waits for others when it is dropped.
            drop(comm);
            *has_left.lock().unwrap() = true;
            change.notify_all();
            return Ok(());
        }
        let waits = change.wait_timeout_while(has_left.lock().unwrap(), SOON, |has_left| !*has_left);
        assert!(*waits.unwrap().0, "rank 0 waits for this one");
        Ok::<(), Error>(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

/// Nobody knows what the driver does on a thread of NCCL's when the process has come to its end.
#[test]
fn a_process_does_not_end_while_nccl_ends_a_communicator() {
    passes(("seed=2", "seed=2,hang=0,abort=300"), "endings::ends_the_process");
}

#[test]
#[ignore = "needs an NCCL whose work never ends, and that takes long to abort"]
fn ends_the_process() {
    let outcomes = spawn(TransportKind::Shm, RANKS, |world| {
        let comm = Communicator::open(&world, 0)?;
        comm.set_deadline(LIMIT);
        let queue = Cuda::new(comm.rank())?.queue()?;
        comm.attach(&queue)?;
        let mut x = buffer(&queue, &[1f32, 2.0]);
        comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum))?;
        let outcome = x.host::<f32>().map(|sums| sums.to_vec());
        // As a program that ends without dropping what it has.
        std::mem::forget((comm, world));
        outcome
    });
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
}
