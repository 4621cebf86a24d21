//! Tests that need the inside of an executor, and tests under Miri: the reactor moves from thread to thread.

use super::*;
use crate::{Buffer, ReduceOp};
use std::thread;

/// Runs `body` on each rank of a world of two threads.
fn on_two<R: Send>(body: impl Fn(Executor) -> R + Sync) -> Vec<R> {
    let worlds = World::threads(2).unwrap();
    thread::scope(|scope| {
        let rank = |world: World| {
            let body = &body;
            // Longer than any machine, or Miri, takes.
            let options = ExecutorOptions { linger: Duration::from_secs(600), ..ExecutorOptions::default() };
            scope.spawn(move || body(Executor::start(&world, 0, options).unwrap()))
        };
        let ranks: Vec<_> = worlds.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn all_reduce(executor: &Executor, lane: usize, awaited: Awaited) -> Ticket<f32> {
    let options = JobOptions { order: Order::Lane(lane), awaited, ..JobOptions::default() };
    let job = async |comm: &Communicator| {
        let mut buffer = Buffer::from_slice(&[1.0f32])?;
        comm.all_reduce(&mut buffer, ReduceOp::Sum).await?;
        buffer.host::<f32>().map(|sum| sum[0])
    };
    // SAFETY: it keeps nothing of the communicator, and holds a buffer only.
    unsafe { executor.submit(executor.world(), options, job) }
}

#[test]
fn threads_take_turns_to_drive() {
    on_two(|executor| {
        thread::scope(|scope| {
            for lane in 0..3 {
                let executor = executor.clone();
                scope.spawn(move || {
                    for awaited in [Awaited::AtOnce, Awaited::Later] {
                        let ticket = all_reduce(&executor, lane, awaited);
                        assert_eq!(ticket.wait(None).unwrap().unwrap(), 2.0);
                    }
                });
            }
        });
        // Only the executor's end waits for this one.
        let last = all_reduce(&executor, 0, Awaited::Later);
        drop(executor);
        assert_eq!(last.outcome().unwrap().unwrap(), 2.0);
    });
}

#[test]
#[cfg_attr(miri, ignore = "what is the parent's is left alone, and so leaks here")]
fn a_forked_process_is_told_so_and_touches_nothing() {
    let world = World::threads(1).unwrap().remove(0);
    let comm = Communicator::open(&world, 0).unwrap();
    let kept = comm.clone();
    let (mut core, world) = Core::around(comm, ExecutorOptions::default());
    let mine = Arc::get_mut(&mut core).unwrap();
    mine.pretend_forked();
    let executor = Executor(Arc::new(ExecutorOwner { core, world }));
    let ticket = all_reduce(&executor, 0, Awaited::AtOnce);
    let told = |error: Error| assert!(error.to_string().contains("was forked from process"), "{error}");
    told(ticket.wait(None).unwrap().unwrap_err());
    told(executor.shutdown(Duration::ZERO).unwrap_err());
    executor.abort(Error::usage("nobody hears it", "say nothing"));
    let holders = kept.holders();
    drop((executor, ticket));
    assert_eq!(kept.holders(), holders, "the endpoint is the parent's");
}
