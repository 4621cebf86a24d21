//! How an executor ends: with running work, with thousands of dropped tickets, from any thread.

use super::{CHANNEL, TRANSPORTS, everywhere, on_two, options, receive, sum};
use hexagram_logical::executor::{Awaited, Driving, Executor, JobOptions, Order};
use hexagram_logical::testing::spawn;
use hexagram_logical::{Buffer, Communicator, Error};
use std::sync::Arc;
use std::sync::atomic::{self, AtomicUsize};
use std::time::Duration;

/// Jobs that are dropped immediately, on each rank.
const MANY: usize = 2000;

#[test]
fn thousands_of_tickets_are_dropped_and_every_job_is_done() {
    for transport in TRANSPORTS {
        for driving in [Driving::Waiting, Driving::OneThread] {
            let run = spawn(transport, 2, |comm| {
                let executor = Executor::start(comm.world(), CHANNEL, options(driving))?;
                let done = Arc::new(AtomicUsize::new(0));
                for number in 0..MANY {
                    let job = async move |comm: &Communicator| {
                        let mut buffer = Buffer::from_slice(&[number as i64])?;
                        if comm.rank() == 0 {
                            return comm.send(&buffer, 1).await;
                        }
                        comm.recv(&mut buffer, 0).await?;
                        assert_eq!(buffer.host::<i64>()?[0], number as i64);
                        Ok(())
                    };
                    let options = JobOptions { order: Order::AtOnce, ..JobOptions::default() };
                    // SAFETY: it keeps nothing of the communicator, and holds a buffer only.
                    let ticket = unsafe { executor.submit(executor.world(), options, job) };
                    let done = Arc::clone(&done);
                    let count = move || {
                        done.fetch_add(1, atomic::Ordering::Relaxed);
                    };
                    ticket.on_done(count);
                }
                executor.shutdown(Duration::from_secs(120))?;
                Ok(done.load(atomic::Ordering::Relaxed))
            });
            assert_eq!(run.unwrap(), [MANY; 2], "{transport:?}, {driving:?}");
        }
    }
}

#[test]
fn what_is_under_way_when_the_last_clone_goes_is_finished() {
    everywhere(|executor| {
        let executor = executor.clone();
        let tickets = [Awaited::Later, Awaited::AtOnce]
            .map(|awaited| sum(&executor, JobOptions { awaited, ..JobOptions::default() }, 1.0, 1000));
        executor.shutdown(Duration::from_secs(60))?;
        drop(executor);
        let ranks = tickets[0].outcome().unwrap()?.0;
        assert_eq!(tickets[1].outcome().unwrap()?, (ranks, ranks));
        Ok(())
    });
}

#[test]
fn what_cannot_be_finished_is_given_up() {
    on_two(|executor| {
        let ticket = receive(&executor, JobOptions::default());
        if executor.world().rank() == 1 {
            let error = ticket.wait(None).unwrap().unwrap_err();
            assert!(matches!(error, Error::PeerFailed { culprit, .. } if culprit.rank == 0));
            return Ok(());
        }
        let lane = sum(&executor, JobOptions::default(), 1.0, 1);
        let behind = sum(&executor, JobOptions::default(), 1.0, 1);
        drop(executor);
        for error in [ticket.outcome().unwrap().unwrap_err(), behind.outcome().unwrap().unwrap_err()] {
            assert!(error.to_string().contains("shut down while 3 jobs were running"), "{error}");
        }
        assert!(lane.outcome().unwrap().is_err());
        Ok(())
    });
}

#[test]
fn a_callback_may_drop_the_last_clone() {
    on_two(|executor| {
        let unending = receive(&executor, JobOptions::default());
        sum(&executor, JobOptions::default(), 1.0, 100_000).on_done(move || drop(executor));
        // Only the end of the executor ends it, here or on the other rank.
        assert!(unending.wait(None).unwrap().is_err());
        Ok(())
    });
}

#[test]
fn nothing_is_accepted_after_the_end() {
    everywhere(|executor| {
        executor.shutdown(Duration::from_secs(60))?;
        executor.shutdown(Duration::ZERO)?;
        let error = sum(executor, JobOptions::default(), 1.0, 1).wait(None).unwrap().unwrap_err();
        assert!(error.to_string().contains("was shut down"), "{error}");
        Ok(())
    });
}
