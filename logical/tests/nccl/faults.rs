//! What can keep NCCL from connecting the ranks, on demand: each program here runs in a process of its own, over a fake
//! NCCL that is set to go wrong in one way. Where that is not, they are skipped.

use super::ranks::buffer;
use hexagram_logical::{Communicator, Error, ReduceOp, Result, TransportKind};
use hexagram_physical::device::cuda::{Cuda, devices};
use hexagram_physical::testing::spawn;
use std::env;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Number of ranks, each with a GPU of its own.
pub(crate) const RANKS: usize = 3;
/// Deadline of what never happens.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);
/// Longest time that something may take which is to end by itself: far above the limit, as the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Runs the test `name` of this program, which is ignored otherwise, in a process of its own over a fake NCCL that is set
/// so; says so if there is none.
#[track_caller]
pub(crate) fn passes((driver, nccl): (&str, &str), name: &str) {
    let is_fake = devices().is_ok_and(|found| found.iter().any(|gpu| gpu.name.contains("Fake")));
    if !is_fake {
        eprintln!("skipped: no fake CUDA driver");
        return;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("nccl::{name}"), "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("HEXAGRAM_FAKE_CUDA", format!("devices=3,{driver}")).env("HEXAGRAM_FAKE_NCCL", nccl);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let has_passed = output.status.success() && text.contains("1 passed");
    assert!(has_passed, "{name} with {driver}, {nccl}: {text}{errors}");
}

/// Returns with what each of three ranks fails whose GPUs NCCL is to connect before this deadline.
fn refusals(deadline: Duration) -> Vec<Error> {
    let started = Instant::now();
    let outcomes = spawn(TransportKind::Shm, RANKS, |world| {
        let comm = Communicator::open(&world, 0)?;
        comm.set_deadline(deadline);
        let queue = Cuda::new(comm.rank())?.queue()?;
        comm.attach(&queue)
    });
    assert!(started.elapsed() < 2 * SOON, "{:?}", started.elapsed());
    outcomes.into_iter().map(Result::unwrap_err).collect()
}

#[test]
fn ranks_that_nccl_does_not_connect_hear_why() {
    passes(("seed=2", "init=3"), "faults::does_not_begin");
}

#[test]
#[ignore = "needs an NCCL that refuses"]
fn does_not_begin() {
    let errors = refusals(SOON);
    let says_why = |error: &Error| error.to_string().contains("connect the ranks by NCCL: ncclInternalError");
    assert!(errors.iter().any(says_why), "{errors:?}");
}

#[test]
fn a_connection_that_never_comes_is_past_its_deadline() {
    passes(("seed=2", "init=7"), "faults::never_begins");
}

#[test]
#[ignore = "needs an NCCL that never connects"]
fn never_begins() {
    let errors = refusals(LIMIT);
    let is_late = |error: &Error| matches!(error, Error::Deadline { .. });
    assert!(errors.iter().any(is_late), "{errors:?}");
}

#[test]
fn an_nccl_that_is_too_old_is_no_path() {
    passes(("seed=2", "version=22606"), "faults::has_another_path");
}

#[test]
fn slices_of_one_gpu_are_not_connected() {
    passes(("seed=2,slices=1", "seed=2"), "faults::has_another_path");
}

#[test]
#[ignore = "needs NCCL 2.26.6, or GPUs that are one"]
fn has_another_path() {
    spawn(TransportKind::Shm, RANKS, |world| {
        let comm = Communicator::open(&world, 0).unwrap();
        let queue = Cuda::new(comm.rank()).unwrap().queue().unwrap();
        assert_ne!(comm.attach(&queue).unwrap(), Some(TransportKind::Nccl));
        let mut x = buffer(&queue, &[1f32, 2.0]);
        comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum)).unwrap();
        assert_eq!(*x.host::<f32>().unwrap(), [3.0, 6.0]);
    });
}

/// NCCL's own work can be ended; what its stream waits for cannot.
#[test]
fn work_ahead_of_nccl_s_that_never_ends_holds_up_nobody() {
    passes(("seed=2,hang=20", "seed=2"), "faults::is_held_up");
}

#[test]
#[ignore = "needs a driver whose work never ends"]
fn is_held_up() {
    let started = Instant::now();
    let outcomes = spawn(TransportKind::Shm, RANKS, |world| -> Result<()> {
        let comm = Communicator::open(&world, 0)?;
        comm.set_deadline(LIMIT);
        let queue = Cuda::new(comm.rank())?.queue()?;
        comm.attach(&queue)?;
        let mut x = buffer(&queue, &[1f32, 2.0]);
        loop {
            x.write_all()?.scale(0.25)?;
            comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum))?;
            queue.check()?;
            thread::sleep(Duration::from_millis(10));
        }
    });
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
}

/// An operation is over when it is enqueued, and so may be unfinished when its endpoint is closed.
#[test]
fn work_that_is_not_done_when_its_endpoint_closes_has_failed() {
    passes(("seed=2", "seed=2,hang=1"), "faults::is_closed_too_early");
}

#[test]
#[ignore = "needs an NCCL whose work never ends"]
fn is_closed_too_early() {
    let outcomes = spawn(TransportKind::Shm, RANKS, |world| {
        let comm = Communicator::open(&world, 0)?;
        comm.set_deadline(SOON);
        let queue = Cuda::new(comm.rank())?.queue()?;
        comm.attach(&queue)?;
        let mut x = buffer(&queue, &[1f32, 2.0]);
        comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum))?;
        drop(comm);
        drop(world);
        Ok::<_, Error>(x.host::<f32>()?.to_vec())
    });
    assert!(outcomes.iter().any(Result::is_err), "{outcomes:?}");
    assert!(outcomes.iter().flatten().all(|sums| *sums == [3.0, 6.0]), "{outcomes:?}");
}
