//! Failures: named by rank and element, on every rank, and never a hang.

use super::codecs::{Dithered, Faulty, Half as EverySecond, Largest, Liar};
use hexagram_logical::codec::{Half, Keep, RandomK};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{self, on_threads, skipped_under_mpi, spawn};
use hexagram_logical::{Communicator, DType, Error, ReduceOp, Result, TransportKind};
use std::sync::{Arc, Barrier};

/// The errors of 3 ranks over every transport.
fn all_fail(body: impl Fn(&Communicator) -> Result<()> + Sync, check: impl Fn(usize, Error)) {
    for transport in on_threads() {
        // No rank fails while others are still opening their communicators, which would then fail.
        let open = Barrier::new(3);
        let fail = |comm| {
            open.wait();
            Ok(body(&comm).err())
        };
        let errors = spawn(transport, 3, fail).unwrap();
        for (rank, error) in errors.into_iter().enumerate() {
            check(rank, error.unwrap_or_else(|| panic!("rank {rank} over {transport} saw no error")));
        }
    }
}

/// Returns true if tests run on a device other than the host.
fn on_device() -> bool {
    !testing::zeroed(DType::F32, 0).queue().is_host()
}

fn encoding() -> Encoding {
    Encoding::new(Arc::new(Half::F16))
}

#[test]
fn ranks_that_encode_differently_disagree() {
    let others: [fn() -> Encoding; 4] = [
        || Encoding::new(Arc::new(Half::BF16)),
        || encoding().with_feedback(Feedback::Error),
        || encoding().with_seed(1),
        || Encoding::new(Arc::new(Dithered)),
    ];
    for other in others {
        let run = |comm: &Communicator| {
            let mut encoding = if comm.rank() == 1 { other() } else { encoding() };
            comm.blocking().all_reduce_encoded(&mut [0.0; 12], ReduceOp::Sum, &mut encoding)
        };
        all_fail(run, |rank, error| {
            let text = error.to_string();
            let codecs = [encoding(), other()].map(|encoding| encoding.digest().to_string());
            assert!(codecs.iter().all(|codec| text.contains(codec)), "rank {rank}: {text}");
            assert!(text.contains("the same codec, feedback, seed"), "rank {rank}: {text}");
        });
    }
}

#[test]
fn ranks_that_call_different_primitives_disagree() {
    type Call = fn(&Communicator) -> Result<()>;
    let encoded: Call =
        |comm| comm.blocking().all_reduce_encoded(&mut [0.0; 12], ReduceOp::Sum, &mut encoding());
    let others: [Call; 4] = [
        |comm| comm.blocking().all_reduce(&mut [0.0f32; 12], ReduceOp::Sum),
        |comm| comm.blocking().all_reduce_sparse(&mut [0.0; 12], ReduceOp::Sum, &mut encoding()),
        |comm| comm.blocking().majority_vote(&mut [0.0; 12]),
        |comm| comm.blocking().all_reduce_encoded(&mut [0.0; 13], ReduceOp::Sum, &mut encoding()),
    ];
    for other in others {
        let run = |comm: &Communicator| if comm.rank() == 2 { other(comm) } else { encoded(comm) };
        all_fail(run, |rank, error| {
            let text = error.to_string();
            assert!(text.contains("ranks disagree"), "rank {rank}: {text}");
        });
    }
}

#[test]
fn what_is_not_finite_is_named_by_rank_and_element() {
    type Call = fn(&Communicator, &mut [f32]) -> Result<()>;
    let two_level = || Encoding::new(Arc::new(Largest(2))).with_feedback(Feedback::TwoLevel);
    let calls: [Call; 5] = [
        |comm, x| {
            let mut encoding = Encoding::new(Arc::new(Largest(2))).with_feedback(Feedback::Difference);
            comm.blocking().all_reduce_encoded(x, ReduceOp::Sum, &mut encoding)
        },
        |comm, x| {
            comm.blocking().all_reduce_sparse(x, ReduceOp::Sum, &mut Encoding::new(Arc::new(Largest(2))))
        },
        |comm, x| {
            comm.blocking().all_reduce_linear(x, ReduceOp::Sum, &mut Encoding::linear(Arc::new(EverySecond)))
        },
        |comm, x| {
            let places = RandomK::new(Keep::Count(3))?;
            comm.blocking().all_reduce_linear(x, ReduceOp::Sum, &mut Encoding::linear(Arc::new(places)))
        },
        |comm, x| comm.blocking().majority_vote(x),
    ];
    let check = |rank, error: Error, place: usize, at: usize| match (&error, rank == place) {
        (Error::NotFinite { place, index, tensor: None, .. }, true) => {
            // On a device the codec refuses later, and only the place within the message is known.
            assert!(place.rank == rank && (*index == at || on_device()), "{error}");
        }
        // On a device, the queue reports late failures, and counts within a message.
        (Error::Usage { .. }, true) if on_device() => {
            assert!(error.to_string().contains("is NaN"), "{error}");
        }
        (Error::PeerFailed { culprit, cause, .. }, false) => {
            let named = cause.contains(&format!("element {at} is NaN"));
            let late = on_device() && cause.contains("is NaN");
            assert!(culprit.rank == place && (named || late), "{error}");
        }
        _ => panic!("rank {rank}: {error}"),
    };
    for call in calls {
        let run = |comm: &Communicator| {
            let mut x = [1.0; 30];
            x[17] = if comm.rank() == 1 { f32::NAN } else { 1.0 };
            call(comm, &mut x)
        };
        all_fail(run, |rank, error| check(rank, error, 1, 17));
    }
    // Infinities of two ranks make a NaN on the owner of their chunk.
    let run = |comm: &Communicator| {
        let mut x = [1.0; 30];
        x[25] = [f32::INFINITY, f32::NEG_INFINITY, 1.0][comm.rank()];
        comm.blocking().all_reduce_encoded(&mut x, ReduceOp::Sum, &mut two_level())
    };
    // On the workers, infinity minus its message is NaN, but that affects only the next step.
    all_fail(run, |rank, error| check(rank, error, 2, 25));
}

#[test]
fn a_message_that_cannot_be_decoded_is_its_senders_failure() {
    let run = |sparse: bool| {
        move |comm: &Communicator| {
            let mut encoding = Encoding::new(Arc::new(Faulty { here: comm.rank() == 1 }));
            match sparse {
                true => comm.blocking().all_reduce_sparse(&mut [1.0; 30], ReduceOp::Sum, &mut encoding)?,
                false => comm.blocking().all_reduce_encoded(&mut [1.0; 30], ReduceOp::Sum, &mut encoding)?,
            }
            comm.blocking().barrier()
        }
    };
    let check = |rank, error: Error| {
        let text = error.to_string();
        let named = matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 1);
        assert!(named && text.contains("faulty cannot decode"), "rank {rank}: {text}");
    };
    all_fail(run(true), check);
    all_fail(run(false), check);
}

#[test]
fn a_codec_that_is_wrong_about_sizes_is_its_ranks_failure() {
    let sizes = [(4, 5, "encoded_len of 4"), (4, usize::MAX, "encoded_len of 4"), (usize::MAX, 0, "exceed")];
    for (promised, returned, words) in sizes {
        for sparse in [true, false] {
            let run = |comm: &Communicator| {
                let mut liar = Encoding::new(Arc::new(Liar { promised, returned }));
                match sparse {
                    true => comm.blocking().all_reduce_sparse(&mut [1.0; 30], ReduceOp::Sum, &mut liar),
                    false => comm.blocking().all_reduce_encoded(&mut [1.0; 30], ReduceOp::Sum, &mut liar),
                }
            };
            all_fail(run, |rank, error| assert!(error.to_string().contains(words), "rank {rank}: {error}"));
        }
    }
}

#[test]
fn a_wrong_call_sends_nothing_and_changes_nothing() {
    if skipped_under_mpi("it is about a call that sends nothing") {
        return;
    }
    spawn(TransportKind::Thread, 2, |comm| {
        let refused = |outcome: Result<()>, what: &str| {
            let error = outcome.unwrap_err();
            assert!(matches!(&error, Error::Usage { .. }) && error.to_string().contains(what), "{error}");
        };
        let mut one = encoding();
        refused(comm.blocking().all_reduce_encoded(&mut [1.0], ReduceOp::Max, &mut one), "an encoded max");
        let mut wide = testing::zeroed(DType::F64, 3);
        let outcome = comm.block_on(comm.all_reduce_sparse(&mut wide, ReduceOp::Sum, &mut one));
        refused(outcome, "codecs encode f32, not f64");
        let mut other = encoding().with_feedback(Feedback::Extrapolation);
        refused(comm.blocking().all_reduce_encoded(&mut [1.0], ReduceOp::Sum, &mut other), "extrapolation");
        let mut other = encoding().with_feedback(Feedback::TwoLevel);
        refused(comm.blocking().all_reduce_sparse(&mut [1.0], ReduceOp::Sum, &mut other), "two-level");
        let mut other = Encoding::linear(Arc::new(EverySecond)).with_feedback(Feedback::Difference);
        refused(comm.blocking().all_reduce_linear(&mut [1.0], ReduceOp::Sum, &mut other), "difference");
        let mut error = encoding().with_feedback(Feedback::Error);
        comm.blocking().all_reduce_encoded(&mut [1.0, 2.0], ReduceOp::Sum, &mut error)?;
        refused(
            comm.blocking().all_reduce_encoded(&mut [1.0], ReduceOp::Sum, &mut error),
            "a separate encoding for each bucket",
        );
        assert_eq!(one.state().operations(), 0);
        comm.blocking().barrier()
    })
    .unwrap();
}
