//! The order of jobs, and which of them run concurrently.

use super::{CHANNEL, everywhere, sum};
use hexagram_logical::executor::{
    Awaited, Executor, ExecutorOptions, GroupHandle, JobOptions, Order, Ticket,
};
use hexagram_logical::testing::spawn;
use hexagram_logical::{Buffer, Communicator, Error, ReduceOp, Result, TransportKind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

/// Returns the sum of 1 to the number of ranks.
fn total(ranks: usize) -> f32 {
    (ranks * (ranks + 1) / 2) as f32
}

#[test]
fn a_job_is_run_whether_anybody_waits_at_once_or_later_or_never() {
    everywhere(|executor| {
        let group = executor.world();
        let mine = group.rank() as f32 + 1.0;
        for len in [1, 1000, 100_000] {
            for awaited in [Awaited::AtOnce, Awaited::Later] {
                let ticket = sum(executor, JobOptions { awaited, ..JobOptions::default() }, mine, len);
                let expected = total(group.size());
                assert_eq!(ticket.wait(None).unwrap()?, (expected, expected));
                assert!(ticket.is_done());
            }
        }
        let (sender, receiver) = mpsc::channel();
        let ticket = sum(executor, JobOptions::default(), mine, 1000);
        ticket.on_done(move || sender.send(()).unwrap());
        drop(ticket);
        receiver.recv().unwrap();
        Ok(())
    });
}

#[test]
fn eight_threads_submit_and_wait_at_once() {
    everywhere(|executor| {
        let group = executor.world();
        let mine = group.rank() as f32 + 1.0;
        let expected = total(group.size());
        let outcomes: Vec<Result<()>> = thread::scope(|scope| {
            let run = |lane: usize| {
                scope.spawn(move || {
                    for round in 0..20 {
                        let awaited = if round % 2 == 0 { Awaited::AtOnce } else { Awaited::Later };
                        let options =
                            JobOptions { order: Order::Lane(lane), awaited, ..JobOptions::default() };
                        let ticket = sum(executor, options, mine, 100 * (lane + 1));
                        assert_eq!(ticket.wait(None).unwrap()?, (expected, expected));
                    }
                    Ok(())
                })
            };
            let threads: Vec<_> = (0..8).map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        outcomes.into_iter().collect()
    });
}

#[test]
fn a_lane_keeps_the_order_of_submission() {
    everywhere(|executor| {
        let group = executor.world().clone();
        let order = Arc::new(Mutex::new(Vec::new()));
        let tickets: Vec<Ticket<()>> = (0..100)
            .map(|number| {
                let order = Arc::clone(&order);
                let job = async move |comm: &Communicator| {
                    // Ranks would disagree about the length if two jobs changed their order.
                    let mut buffer = Buffer::from_slice(&vec![1.0f32; number + 1])?;
                    comm.all_reduce(&mut buffer, ReduceOp::Sum).await?;
                    order.lock().unwrap().push(number);
                    Ok(())
                };
                // SAFETY: it keeps nothing of the communicator, and holds no guard while it waits.
                unsafe { executor.submit(&group, JobOptions::default(), job) }
            })
            .collect();
        for ticket in tickets.iter().rev() {
            ticket.wait(None).unwrap()?;
        }
        assert!(order.lock().unwrap().iter().copied().eq(0..100));
        Ok(())
    });
}

#[test]
fn a_message_does_not_wait_behind_a_collective() {
    let run = spawn(TransportKind::Thread, 2, |comm| {
        let executor = Executor::start(comm.world(), CHANNEL, ExecutorOptions::default())?;
        let group = executor.world();
        let rank = group.rank();
        let message = JobOptions { order: Order::AtOnce, ..JobOptions::default() };
        // Rank 1 takes part in the sum only after it has the message that rank 0 sends behind it.
        let early = (rank == 0).then(|| sum(&executor, JobOptions::default(), 1.0, 10));
        let job = async move |comm: &Communicator| {
            let mut buffer = Buffer::from_slice(&[7.0f32])?;
            match rank {
                0 => comm.send(&buffer, 1).await,
                _ => comm.recv(&mut buffer, 0).await,
            }
        };
        // SAFETY: it keeps nothing of the communicator, and holds a buffer only.
        unsafe { executor.submit(group, message, job) }.wait(None).unwrap()?;
        let sum = early.unwrap_or_else(|| sum(&executor, JobOptions::default(), 1.0, 10));
        sum.wait(None).unwrap()
    });
    assert_eq!(run.unwrap(), [(2.0, 2.0); 2]);
}

#[test]
fn groups_run_beside_each_other_until_they_are_released() {
    everywhere(|executor| {
        let world = executor.world();
        let size = world.size();
        let reversed: Vec<usize> = (0..size).rev().collect();
        let job = async move |comm: &Communicator| comm.subgroup(&reversed).await;
        // SAFETY: it returns the group that the communicator made, and keeps nothing else.
        let made = unsafe { executor.submit_group(world, JobOptions::default(), job) };
        let group = made.wait(None).unwrap()?.unwrap();
        assert_eq!((group.rank(), group.size()), (size - 1 - world.rank(), size));
        let gather = |group: &GroupHandle| {
            let job = async |comm: &Communicator| {
                let mine = Buffer::from_slice(&[comm.world().rank() as i64])?;
                let mut all = Buffer::from_slice(&vec![0i64; comm.size()])?;
                comm.all_gather(&mine, &mut all).await?;
                Ok(all.host::<i64>()?.to_vec())
            };
            // SAFETY: it keeps nothing of the communicator, and holds buffers only.
            unsafe { executor.submit(group, JobOptions::default(), job) }
        };
        let forth = gather(world);
        let back = gather(&group);
        let forth = forth.wait(None).unwrap()?;
        assert!(forth.iter().copied().eq(0..size as i64));
        assert!(back.wait(None).unwrap()?.into_iter().eq(forth.into_iter().rev()));
        executor.release(&group);
        let error = gather(&group).wait(None).unwrap().unwrap_err();
        assert!(matches!(error, Error::Usage { .. }), "{error}");
        Ok(())
    });
}
