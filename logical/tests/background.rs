//! Operations in the background: their effect on the model, their order, how all ranks abort together, and how they
//! fail.

use crate::matrix;
use half::bf16;
use hexagram_logical::asynchronous::{Background, Model, Outcome, Pending};
use hexagram_logical::codec::Half;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{self, on_threads, skipped_under_mpi, spawn};
use hexagram_logical::{
    Buffer, Communicator, Element, Error, HEADER_BYTES, NOTICE_BYTES, ReduceOp, Result, TransportKind,
};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};

const RANKS: [usize; 4] = [2, 3, 4, 8];

fn model<T: Element>(elements: &[T]) -> Model {
    Arc::new(Mutex::new(testing::buffer(elements)))
}

fn read<T: Element>(model: &Model) -> Vec<T> {
    model.lock().unwrap().host().unwrap().to_vec()
}

fn add(model: &Model, what: f64) {
    model.lock().unwrap().host_mut::<f64>().unwrap().iter_mut().for_each(|x| *x += what);
}

/// Uneven numbers, in which rounding shows.
fn uneven(rank: usize, len: usize) -> Vec<f64> {
    (0..len).map(|at| ((rank * 31 + at * 17) % 101) as f64 / 7.0).collect()
}

/// Every rank's numbers, in the order of ranks.
fn gathered(comm: &Communicator, mine: &[f64]) -> Vec<Vec<f64>> {
    let mut all = vec![0.0; mine.len() * comm.size()];
    comm.blocking().all_gather(mine, &mut all).unwrap();
    all.chunks(mine.len()).map(<[f64]>::to_vec).collect()
}

fn sums(rows: &[Vec<f64>]) -> Vec<f64> {
    (0..rows[0].len()).map(|at| rows.iter().map(|row| row[at]).sum()).collect()
}

fn close(got: &[f64], want: &[f64]) -> bool {
    got.iter().zip(want).all(|(got, want)| (got - want).abs() <= 1e-12 * want.abs().max(1.0))
}

#[test]
fn without_updates_meanwhile_every_model_becomes_the_mean() {
    matrix(&RANKS, |comm| {
        let background = comm.block_on(Background::start(comm))?;
        for len in [1, 1000, 5001] {
            let mine = uneven(comm.rank(), len);
            let shared = model(&mine);
            assert_eq!(background.post_mean(&shared).blocking()?, Outcome::Applied);
            let got = gathered(comm, &read::<f64>(&shared));
            assert!(got.iter().all(|other| *other == got[0]), "models differ by so much as a bit");
            let sum = sums(&gathered(comm, &mine));
            let mean: Vec<f64> = sum.iter().map(|sum| sum / comm.size() as f64).collect();
            assert!(close(&got[0], &mean));
        }
        Ok(())
    });
}

#[test]
fn narrow_floats_and_nothing_at_all_are_averaged_too() {
    matrix(&RANKS, |comm| {
        let background = comm.block_on(Background::start(comm))?;
        let halves = model(&[bf16::from_f32(comm.rank() as f32); 33]);
        let singles = model::<f32>(&[]);
        let handles = [background.post_mean(&halves), background.post_mean(&singles)];
        for handle in handles {
            assert_eq!(handle.blocking()?, Outcome::Applied);
        }
        let mean = (comm.size() - 1) as f32 / 2.0;
        assert!(read::<bf16>(&halves).iter().all(|x| (x.to_f32() - mean).abs() <= mean / 64.0));
        Ok(())
    });
}

/// Posts a mean that begins only after the returned sender is dropped.
fn held(background: &Background, shared: &Model) -> (Pending<Outcome>, std::sync::mpsc::Sender<()>) {
    let (release, held) = channel::<()>();
    let handle = background.post(shared, async move |comm, copy| {
        let _ = held.recv();
        comm.all_reduce(copy, ReduceOp::Mean).await
    });
    (handle, release)
}

#[test]
fn updates_made_meanwhile_are_kept_and_the_sum_over_ranks_with_them() {
    matrix(&RANKS, |comm| {
        let background = comm.block_on(Background::start(comm))?;
        let before = uneven(comm.rank(), 777);
        let shared = model(&before);
        let (handle, release) = held(&background, &shared);
        // The operation is running, and blocks no access to the model.
        add(&shared, comm.rank() as f64 + 0.25);
        assert!(!handle.is_done());
        add(&shared, 0.5);
        drop(release);
        assert_eq!(handle.blocking()?, Outcome::Applied);
        let n = comm.size() as f64;
        let all = gathered(comm, &before);
        let mean: Vec<f64> = sums(&all).iter().map(|sum| sum / n).collect();
        let got = gathered(comm, &read::<f64>(&shared));
        for (rank, got) in got.iter().enumerate() {
            let want: Vec<f64> = mean.iter().map(|mean| mean + rank as f64 + 0.75).collect();
            assert!(close(got, &want), "rank {rank}");
        }
        let updates = n * (n - 1.0) / 2.0 + 0.75 * n;
        let want: Vec<f64> = sums(&all).iter().map(|sum| sum + updates).collect();
        assert!(close(&sums(&got), &want));
        Ok(())
    });
}

#[test]
fn the_mean_over_ranks_survives_a_hundred_averages_under_constant_updates() {
    matrix(&RANKS, |comm| {
        let background = comm.block_on(Background::start(comm))?;
        let before = uneven(comm.rank(), 64);
        let shared = model(&before);
        for round in 0..100 {
            let handle = background.post_mean(&shared);
            add(&shared, (comm.rank() + round) as f64 / 16.0);
            handle.blocking()?;
        }
        drop(background);
        let n = comm.size();
        let updates: f64 =
            (0..n).flat_map(|rank| (0..100).map(move |round| (rank + round) as f64 / 16.0)).sum();
        let want: Vec<f64> = sums(&gathered(comm, &before)).iter().map(|sum| sum + updates).collect();
        assert!(close(&sums(&gathered(comm, &read::<f64>(&shared))), &want));
        Ok(())
    });
}

#[test]
fn an_encoded_mean_is_equal_everywhere_and_keeps_what_is_added_meanwhile() {
    matrix(&RANKS, |comm| {
        let background = comm.block_on(Background::start(comm))?;
        for feedback in [Feedback::None, Feedback::TwoLevel, Feedback::Difference] {
            let encoding = Encoding::new(Arc::new(Half::BF16)).with_feedback(feedback);
            let encoding = Arc::new(Mutex::new(encoding));
            let mine: Vec<f32> = uneven(comm.rank(), 3000).iter().map(|x| *x as f32).collect();
            let shared = model(&mine);
            for round in 0..3 {
                let handle = background.post_mean_encoded(&shared, &encoding);
                assert_eq!(handle.blocking()?, Outcome::Applied);
                let got: Vec<f64> = read::<f32>(&shared).into_iter().map(f64::from).collect();
                let all = gathered(comm, &got);
                assert!(all.iter().all(|other| *other == all[0]), "{feedback}, round {round}");
                let exact = gathered(comm, &mine.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
                for (x, sum) in got.iter().zip(sums(&exact)) {
                    let mean = sum / comm.size() as f64;
                    assert!((x - mean).abs() <= mean / 32.0 + 1e-6, "{x} is not {mean}: {feedback}");
                }
            }
            assert_eq!(encoding.lock().unwrap().state().operations(), 3);
        }
        Ok(())
    });
}

#[test]
fn operations_run_in_the_order_in_which_they_were_posted_whatever_their_kind() {
    matrix(&RANKS, |comm| {
        let background = comm.block_on(Background::start(comm))?;
        let first = model(&[comm.rank() as f64]);
        let second = model(&[1f32, 2.0, 3.0]);
        let sum = background.post(&first, async |comm, copy| comm.all_reduce(copy, ReduceOp::Sum).await);
        let root = comm.size() - 1;
        let broadcast = background.post(&second, async move |comm, copy| comm.broadcast(copy, root).await);
        let local = background.post(&second, async |_, copy| {
            copy.host_mut::<f32>()?.iter_mut().for_each(|x| *x *= 2.0);
            Ok(())
        });
        // The last was posted with the present x: its difference is x, whatever the broadcast's result.
        assert_eq!(local.blocking()?, Outcome::Applied);
        assert_eq!((sum.blocking()?, broadcast.blocking()?), (Outcome::Applied, Outcome::Applied));
        let n = comm.size() as f64;
        assert_eq!((read(&first), read(&second)), (vec![n * (n - 1.0) / 2.0], vec![2f32, 4.0, 6.0]));
        Ok(())
    });
}

#[test]
fn all_ranks_abort_the_same_operations_and_go_on_ten_times_over() {
    matrix(&RANKS, |comm| {
        let mut background = comm.block_on(Background::start(comm))?;
        let rank = comm.rank();
        let n = comm.size();
        for round in 0..10 {
            let shared = model(&uneven(rank, 100));
            // One rank's thread is held in its first operation, so that no later one begins before the abort. Each
            // rank has posted a different number of them.
            let (first, release) = held(&background, &shared);
            let more = (rank + round) % n;
            let later: Vec<_> = (0..more).map(|_| background.post_mean(&shared)).collect();
            comm.blocking().barrier()?;
            let releaser = std::thread::spawn(move || drop(release));
            background.blocking().abort()?;
            releaser.join().unwrap();
            // All have begun the first, or none, depending on timing.
            let began = first.blocking()? == Outcome::Applied;
            let applied: Vec<bool> = later
                .into_iter()
                .map(|later| Ok(later.blocking()? == Outcome::Applied))
                .collect::<Result<_>>()?;
            let count =
                f64::from(u8::from(began)) + applied.iter().filter(|applied| **applied).count() as f64;
            let counts = gathered(comm, &[count]);
            assert!(counts.iter().all(|other| other[0] == count), "{counts:?}");
            assert!(applied.is_sorted_by(|one, other| one >= other), "operations were skipped: {applied:?}");
            // And on.
            assert_eq!(background.post_mean(&shared).blocking()?, Outcome::Applied);
        }
        Ok(())
    });
}

#[test]
fn what_was_posted_before_an_abort_leaves_the_model_alone() {
    matrix(&RANKS, |comm| {
        let mut background = comm.block_on(Background::start(comm))?;
        let shared = model(&uneven(comm.rank(), 10));
        // Only rank 0 posts; the others abort immediately, so it cannot begin.
        let posted = if comm.rank() == 0 { Some(background.post_mean(&shared)) } else { None };
        background.blocking().abort()?;
        if let Some(handle) = posted {
            assert!(handle.is_done());
            assert_eq!(handle.blocking()?, Outcome::Aborted);
        }
        assert_eq!(read::<f64>(&shared), uneven(comm.rank(), 10));
        background.blocking().abort()
    });
}

#[test]
fn dropping_it_waits_for_what_was_posted() {
    matrix(&RANKS, |comm| {
        let background = comm.block_on(Background::start(comm))?;
        let shared = model(&[comm.rank() as f64]);
        let (handle, release) = held(&background, &shared);
        let releaser = std::thread::spawn(move || drop(release));
        drop(background);
        releaser.join().unwrap();
        assert!(handle.is_done());
        assert_eq!(handle.blocking()?, Outcome::Applied);
        assert_eq!(read::<f64>(&shared), [(comm.size() - 1) as f64 / 2.0]);
        Ok(())
    });
}

#[test]
fn bytes_sent_are_those_of_the_operation_and_of_the_agreement() {
    const LEN: usize = 840 * 128;
    for transport in on_threads() {
        for n in RANKS {
            let sent = spawn(transport, n, |comm| {
                let background = comm.block_on(Background::start(&comm))?;
                let before = comm.world().traffic().bytes_sent();
                background.post_mean(&model(&[1f32; LEN])).blocking()?;
                drop(background);
                Ok(comm.world().traffic().bytes_sent() - before)
            });
            let shm = matches!(transport, TransportKind::Shm | TransportKind::Mixed);
            let rounds = n.next_power_of_two().ilog2() as usize;
            let agreement = if shm { NOTICE_BYTES + 1 } else { rounds * HEADER_BYTES + n - 1 };
            let mean = 2 * (n - 1) * (LEN * 4 / n + if shm { 0 } else { HEADER_BYTES });
            let notice = if shm { NOTICE_BYTES } else { 0 };
            assert_eq!(sent.unwrap(), vec![(agreement + mean + notice) as u64; n], "{transport} × {n}");
        }
    }
}

/// Runs `body` on 3 ranks of every transport; every rank must get an error with one of `words` in it.
fn all_fail(words: &[&str], body: impl Fn(&Communicator, &Background) -> Result<()> + Sync) {
    for transport in on_threads() {
        // No rank fails while others are still opening their channels.
        let open = Barrier::new(3);
        let errors = spawn(transport, 3, |comm| {
            let background = comm.block_on(Background::start(&comm))?;
            open.wait();
            let error = body(&comm, &background).err();
            // It stays so.
            let again = background.post_mean(&model(&[0f32])).blocking();
            assert!(again.is_err(), "a background that failed went on");
            Ok(error)
        });
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            let text =
                error.unwrap_or_else(|| panic!("rank {rank} over {transport} saw no error")).to_string();
            assert!(words.iter().any(|word| text.contains(word)), "rank {rank} over {transport}: {text}");
        }
    }
}

#[test]
fn models_of_different_lengths_are_an_error_on_all_ranks() {
    all_fail(&["disagree"], |comm, background| {
        let shared = model(&vec![0f32; if comm.rank() == 1 { 9 } else { 8 }]);
        background.post_mean(&shared).blocking().map(drop)
    });
}

#[test]
fn one_rank_that_posts_less_is_named_by_all_that_posted_more() {
    for transport in on_threads() {
        // No rank fails while others are still in the first operation.
        let first = Barrier::new(3);
        let errors = spawn(transport, 3, |comm| {
            let background = comm.block_on(Background::start(&comm))?;
            let shared = model(&[0f32; 4]);
            background.post_mean(&shared).blocking()?;
            first.wait();
            if comm.rank() == 1 {
                return Ok(None);
            }
            Ok(background.post_mean(&shared).blocking().err())
        });
        let errors: Vec<Error> = errors.unwrap().into_iter().flatten().collect();
        assert_eq!(errors.len(), 2, "over {transport}");
        for error in errors {
            assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 1), "{error}");
        }
    }
}

#[test]
fn an_operation_that_errs_or_panics_ends_everyones() {
    all_fail(&["of its own"], |comm, background| {
        let rank = comm.rank();
        let handle = background.post(&model(&[0f32]), async move |comm, copy| {
            if rank == 2 {
                return Err(Error::usage("an error of its own", "none"));
            }
            comm.all_reduce(copy, ReduceOp::Sum).await
        });
        handle.blocking().map(drop)
    });
    all_fail(&["what a panic"], |comm, background| {
        let rank = comm.rank();
        let handle = background.post(&model(&[0f32]), async move |comm, copy| {
            assert!(rank != 0, "what a panic");
            comm.all_reduce(copy, ReduceOp::Sum).await
        });
        handle.blocking().map(drop)
    });
}

#[test]
fn a_rank_that_stays_away_is_a_deadline_that_names_it() {
    all_fail(&["rank 2 (host", "gave up"], |comm, background| {
        if comm.rank() == 2 {
            // Until the others give up.
            let mut idle = [0f32];
            return comm.blocking().recv(&mut idle, 0);
        }
        // Long enough for rank 1, even where the machine is busy.
        comm.set_deadline(std::time::Duration::from_secs(3));
        background.post_mean(&model(&[0f32])).blocking().map(drop)
    });
}

#[test]
fn what_cannot_be_averaged_is_refused_before_anything_is_sent() {
    if skipped_under_mpi("it is about a call that sends nothing") {
        return;
    }
    spawn(TransportKind::Shm, 2, |comm| {
        let background = comm.block_on(Background::start(&comm))?;
        let before = comm.world().traffic().bytes_sent();
        let refused = background.post_mean(&model(&[1i32])).blocking();
        assert!(matches!(refused, Err(Error::Usage { .. })), "{refused:?}");
        let busy = model(&[comm.rank() as f32]);
        let lent = busy.lock().unwrap().write(0..1)?;
        let refused = background.post_mean(&busy).blocking();
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
        drop(lent);
        assert_eq!(comm.world().traffic().bytes_sent(), before);
        assert_eq!(background.post_mean(&busy).blocking()?, Outcome::Applied);
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_is_called_hands_its_result_back_and_keeps_its_place() {
    matrix(&RANKS, |comm| {
        let mut background = comm.block_on(Background::start(comm))?;
        let rank = comm.rank();
        let shared = model(&[rank as f64]);
        let (first, release) = held(&background, &shared);
        let sum = |mut own: Buffer| {
            background.call(async move |comm| {
                comm.all_reduce(&mut own, ReduceOp::Sum).await?;
                Ok(own)
            })
        };
        let called = sum(testing::buffer(&[rank as f64]));
        assert!(!called.is_done(), "it overtook the one before it");
        drop(release);
        assert_eq!(first.blocking()?, Outcome::Applied);
        let n = comm.size() as f64;
        let sum_of_ranks = called.blocking()?.map(|own| own.host::<f64>().unwrap()[0]);
        assert_eq!(sum_of_ranks, Some(n * (n - 1.0) / 2.0));
        // Posted by rank 0 only, so that no rank can begin it.
        let aborted = if rank == 0 { Some(background.call(async |_| Ok(7))) } else { None };
        background.blocking().abort()?;
        assert_eq!(aborted.map(|it| it.blocking()).transpose()?.flatten(), None);
        Ok(())
    });
}
