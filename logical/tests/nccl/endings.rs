//! Ends of communicators: of a rank that leaves early, and of a process within one. Each program here runs in a process of
//! its own, over a fake NCCL that takes its time.

use super::faults::{LIMIT, RANKS, SOON, passes};
use super::ranks::{buffer, together};
use hexagram_logical::testing::spawn as ranks;
use hexagram_logical::{Buffer, Communicator, Error, ReduceOp, Result, TransportKind};
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

/// NCCL's schedule has eight rounds at a time.
#[test]
fn more_ranks_than_nccl_has_rounds_get_all_of_their_messages() {
    passes(("seed=2,devices=9", "seed=2"), "endings::are_nine");
}

#[test]
#[ignore = "needs nine GPUs"]
fn are_nine() {
    const RANKS: usize = 9;
    let outcome = ranks(TransportKind::Thread, RANKS, |comm| {
        let queue = Cuda::new(comm.rank())?.queue()?;
        assert_eq!(comm.attach(&queue)?, Some(TransportKind::Nccl));
        let sent: Vec<f32> = (0..RANKS).map(|to| (10 * comm.rank() + to) as f32).collect();
        let sent = buffer(&queue, &sent);
        let mut got: Vec<Buffer> = (0..3).map(|_| buffer(&queue, &[0f32; RANKS])).collect();
        let lanes: Vec<Communicator> = (0..3).map(|lane| comm.lane(lane)).collect();
        let exchange = async |lane: &Communicator, got: &mut Buffer| lane.all_to_all(&sent, got).await;
        for _ in 0..2 {
            let all = lanes.iter().zip(&mut got).map(|(lane, got)| exchange(lane, got)).collect();
            comm.block_on(together(all))?;
        }
        let want: Vec<f32> = (0..RANKS).map(|from| (10 * from + comm.rank()) as f32).collect();
        for got in &got {
            assert_eq!(*got.host::<f32>()?, want[..]);
        }
        Ok(())
    });
    outcome.unwrap();
}
