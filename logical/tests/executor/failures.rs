//! Deadlines, panics and aborts: every ticket completes, and the other ranks name the culprit.

use super::{CHANNEL, on_two, receive, sum};
use hexagram_logical::executor::{Executor, ExecutorOptions, JobOptions, Order, Ticket};
use hexagram_logical::testing::spawn;
use hexagram_logical::{Buffer, Communicator, Error, Result, TransportKind};
use std::sync::{Barrier, Mutex, mpsc};
use std::time::Duration;

/// Submits the message that rank 0 waits for.
fn answer(executor: &Executor) -> Ticket<()> {
    let job = async |comm: &Communicator| comm.send(&Buffer::from_slice(&[0.0f32])?, 0).await;
    let options = JobOptions { order: Order::AtOnce, ..JobOptions::default() };
    // SAFETY: it keeps nothing of the communicator, and holds a buffer only.
    unsafe { executor.submit(executor.world(), options, job) }
}

#[test]
fn a_job_has_a_deadline_of_its_own_that_names_the_straggler() {
    let both = Barrier::new(2);
    on_two(|executor| {
        if executor.world().rank() == 0 {
            let deadline = Duration::from_millis(1500);
            let error = receive(&executor, JobOptions { deadline: Some(deadline), ..JobOptions::default() })
                .wait(None)
                .unwrap()
                .unwrap_err();
            let Error::Deadline { waiting_for: Some(peer), after, .. } = &error else { panic!("{error}") };
            assert_eq!((peer.rank, *after), (1, deadline));
        }
        both.wait();
        Ok(())
    });
}

#[test]
fn a_deadline_of_one_job_is_in_place_of_that_of_the_world() {
    let long = Duration::from_secs(120);
    on_two(|executor| {
        let deadline = |options: JobOptions| {
            let job = async |comm: &Communicator| {
                // A lane and a clone have it as well.
                assert_eq!(comm.lane(3).deadline(), comm.clone().deadline());
                Ok((comm.deadline(), comm.world().deadline()))
            };
            // SAFETY: it keeps nothing.
            unsafe { executor.submit(executor.world(), options, job) }.wait(None).unwrap()
        };
        let usual = deadline(JobOptions::default())?;
        assert_eq!(usual.0, usual.1);
        let own = deadline(JobOptions { deadline: Some(long), ..JobOptions::default() })?;
        assert_eq!(own, (long, usual.1));
        Ok(())
    });
}

#[test]
fn a_wait_that_ends_by_its_own_limit_does_not_end_the_job() {
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let run = spawn(TransportKind::Shm, 2, |comm| {
        let executor = Executor::start(comm.world(), CHANNEL, ExecutorOptions::default())?;
        if comm.rank() == 1 {
            // Until the other has waited in vain.
            receiver.lock().unwrap().recv().unwrap();
        }
        let ticket = sum(&executor, JobOptions::default(), 1.0, 10);
        if comm.rank() == 0 {
            assert!(ticket.wait(Some(Duration::ZERO)).is_none());
            assert!(ticket.wait(Some(Duration::from_millis(20))).is_none());
            assert!(!ticket.is_done() && ticket.outcome().is_none());
            sender.send(()).unwrap();
        }
        ticket.wait(Some(Duration::from_secs(60))).unwrap()
    });
    assert_eq!(run.unwrap(), [(2.0, 2.0); 2]);
}

#[test]
fn a_panic_in_a_job_ends_the_work_of_all_ranks() {
    on_two(|executor| {
        if executor.world().rank() == 1 {
            let error = receive(&executor, JobOptions::default()).wait(None).unwrap().unwrap_err();
            let Error::PeerFailed { culprit, cause, .. } = &error else { panic!("{error}") };
            assert!(culprit.rank == 0 && cause.contains("on purpose"), "{error}");
            return Ok(());
        }
        let waits = receive(&executor, JobOptions::default());
        let job = async |_: &Communicator| -> Result<()> { panic!("on purpose") };
        let options = JobOptions { what: "all_reduce", ..JobOptions::default() };
        // SAFETY: it keeps nothing.
        let error =
            unsafe { executor.submit(executor.world(), options, job) }.wait(None).unwrap().unwrap_err();
        assert!(error.to_string().contains("all_reduce panicked: on purpose"), "{error}");
        let error = waits.wait(None).unwrap().unwrap_err();
        assert!(matches!(error, Error::PeerFailed { culprit, .. } if culprit.rank == 0));
        let error = sum(&executor, JobOptions::default(), 1.0, 1).wait(None).unwrap().unwrap_err();
        assert!(matches!(error, Error::Poisoned { .. }), "{error}");
        Ok(())
    });
}

#[test]
fn an_abort_ends_every_job_of_all_ranks() {
    on_two(|executor| {
        let waits = receive(&executor, JobOptions::default());
        let lanes: Vec<_> = match executor.world().rank() {
            0 => (0..3).map(|_| sum(&executor, JobOptions::default(), 1.0, 1)).collect(),
            _ => Vec::new(),
        };
        if executor.world().rank() == 1 {
            let error = waits.wait(None).unwrap().unwrap_err();
            assert!(matches!(error, Error::PeerFailed { culprit, .. } if culprit.rank == 0));
            return Ok(());
        }
        executor.abort(Error::usage("the user has had enough", "ask them"));
        let told = |error: Error| assert!(error.to_string().contains("had enough"), "{error}");
        told(waits.wait(None).unwrap().unwrap_err());
        lanes.into_iter().for_each(|sum| told(sum.wait(None).unwrap().unwrap_err()));
        told(sum(&executor, JobOptions::default(), 1.0, 1).wait(None).unwrap().unwrap_err());
        Ok(())
    });
}

#[test]
fn a_callback_that_waits_or_shuts_down_is_told_not_to() {
    let both = Barrier::new(2);
    on_two(|executor| {
        if executor.world().rank() == 1 {
            both.wait();
            answer(&executor).wait(None).unwrap()?;
            return answer(&executor).wait(None).unwrap();
        }
        let (sender, receiver) = mpsc::channel();
        let again = executor.clone();
        receive(&executor, JobOptions::default()).on_done(move || {
            let next = receive(&again, JobOptions::default());
            let waited = next.wait(None);
            let shut = again.shutdown(Duration::ZERO);
            sender.send((next, waited, shut)).unwrap();
        });
        both.wait();
        let (next, waited, shut) = receiver.recv().unwrap();
        for error in [waited.unwrap().unwrap_err(), shut.unwrap_err()] {
            assert!(error.to_string().contains("on a different thread"), "{error}");
        }
        next.wait(None).unwrap()
    });
}
