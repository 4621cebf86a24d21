//! Ranks that disagree, and wrong calls: an error on every rank, and never a hang.

use hexagram_logical::testing::{self, TRANSPORTS, spawn};
use hexagram_logical::{Communicator, Error, ReduceOp, Result, TransportKind};

/// Runs `body` on 3 ranks of every transport and gives `check` the errors.
fn all_fail(body: impl Fn(&Communicator) -> Result<()> + Sync, check: impl Fn(usize, Error)) {
    for transport in TRANSPORTS {
        // No rank fails while others are still opening their communicators, which would then fail.
        let open = std::sync::Barrier::new(3);
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

/// Every rank sees the disagreement, itself or through the verdict of one that did, and both calls are printed.
fn disagree(one: &str, other: &str, body: impl Fn(&Communicator) -> Result<()> + Sync) {
    all_fail(body, |rank, error| {
        let text = error.to_string();
        assert!(text.contains(one) && text.contains(other), "rank {rank}: {text}");
    });
}

#[test]
fn different_lengths() {
    disagree("all_reduce(12 × f32, sum)", "all_reduce(13 × f32, sum)", |comm| {
        let len = if comm.rank() == 1 { 13 } else { 12 };
        comm.blocking().all_reduce(&mut vec![0f32; len], ReduceOp::Sum)
    });
}

#[test]
fn different_element_types() {
    disagree("broadcast(4 × f32, root 0)", "broadcast(4 × i32, root 0)", |comm| match comm.rank() {
        1 => comm.blocking().broadcast(&mut [0i32; 4], 0),
        _ => comm.blocking().broadcast(&mut [0f32; 4], 0).and_then(|()| comm.blocking().barrier()),
    });
}

#[test]
fn different_reductions() {
    disagree("sum", "mean", |comm| {
        let op = if comm.rank() == 2 { ReduceOp::Mean } else { ReduceOp::Sum };
        comm.blocking().all_reduce(&mut [0f64; 9], op)
    });
}

#[test]
fn different_order() {
    disagree("all_gather", "barrier", |comm| {
        let gather = || comm.blocking().all_gather(&[1u8], &mut [0; 3]);
        if comm.rank() == 0 {
            comm.blocking().barrier()?;
            gather()
        } else {
            gather()?;
            comm.blocking().barrier()
        }
    });
}

#[test]
fn one_rank_too_few_calls_names_the_one_that_left() {
    for transport in TRANSPORTS {
        let errors = spawn(transport, 3, |comm| {
            let barrier = || comm.blocking().barrier();
            if comm.rank() == 1 {
                return Ok(barrier().err());
            }
            // The verdict may find a slow rank still in the first one.
            Ok(barrier().and_then(|()| barrier()).err())
        });
        for error in errors.unwrap().into_iter().flatten() {
            assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 1), "{error}");
        }
    }
}

#[test]
fn a_poisoned_communicator_repeats_the_first_failure() {
    spawn(TransportKind::Thread, 2, |comm| {
        let len = 1 + comm.rank();
        assert!(comm.blocking().all_reduce(&mut vec![0f32; len], ReduceOp::Sum).is_err());
        let again = comm.blocking().barrier().unwrap_err();
        assert!(matches!(&again, Error::Poisoned { because } if because.contains("all_reduce")), "{again}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_dropped_collective_ends_everyones() {
    let polled = std::sync::Barrier::new(3);
    all_fail(
        |comm| {
            let mut buffer = testing::buffer(&[0f32; 1000]);
            if comm.rank() == 1 {
                let mut operation = Box::pin(comm.all_reduce(&mut buffer, ReduceOp::Sum));
                let waker = hexagram_physical::drive::waker();
                let mut context = std::task::Context::from_waker(&waker);
                assert!(operation.as_mut().poll(&mut context).is_pending());
                polled.wait();
                drop(operation);
                return comm.blocking().barrier();
            }
            polled.wait();
            // For this operation, the others may need no more from rank 1 than it has sent.
            comm.blocking().all_reduce(&mut [0f32; 1000], ReduceOp::Sum)?;
            comm.blocking().barrier()
        },
        |rank, error| {
            let text = error.to_string();
            assert!(text.contains("dropped before it was finished"), "rank {rank}: {text}");
        },
    );
}

#[test]
fn different_roots() {
    all_fail(
        |comm| {
            let root = if comm.rank() == 1 { 2 } else { 0 };
            let mut all = [0u8; 3];
            comm.blocking().gather(&[1], (comm.rank() == root).then_some(&mut all[..]), root)?;
            comm.blocking().barrier()
        },
        |rank, error| {
            let text = error.to_string();
            assert!(text.contains("disagree") && text.contains("gather"), "rank {rank}: {text}");
        },
    );
}

#[test]
fn a_busy_buffer_costs_nothing_and_the_call_may_be_repeated() {
    for transport in TRANSPORTS {
        spawn(transport, 2, |comm| {
            let mut buffer = testing::buffer(&[comm.rank() as f32; 8]);
            if comm.rank() == 0 {
                let lent = buffer.read(0..1)?;
                let refused = comm.block_on(comm.all_reduce(&mut buffer, ReduceOp::Sum));
                assert!(matches!(refused, Err(Error::Busy { .. })));
                drop(lent);
            }
            comm.block_on(comm.all_reduce(&mut buffer, ReduceOp::Sum))?;
            assert_eq!(*buffer.host::<f32>()?, [1.0; 8]);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn an_error_inside_a_primitive_ends_everyones() {
    use hexagram_logical::ReceiveMode;
    use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
    all_fail(
        |comm| {
            let buffer = testing::buffer(&[0f32; 4]);
            let fingerprint = Fingerprint::new(OperationKind::SendRecv, buffer.dtype(), 4);
            comm.block_on(comm.operate(fingerprint, async |call| {
                // A primitive with a slip: rank 2 does not exist twice.
                let to = if comm.rank() == 2 { 7 } else { 2 };
                call.recv(to, 0, &buffer, 0..4, ReceiveMode::Copy)?.await.map(drop)
            }))
        },
        |rank, error| {
            let text = error.to_string();
            assert!(text.contains("rank 7 does not exist"), "rank {rank}: {text}");
        },
    );
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    spawn(TransportKind::Tcp, 2, |comm| {
        let usage = |outcome: Result<()>| assert!(matches!(outcome, Err(Error::Usage { .. })), "{outcome:?}");
        let blocking = comm.blocking();
        usage(blocking.broadcast(&mut [0f32], 2));
        usage(blocking.all_gather(&[0f32; 3], &mut [0.0; 7]));
        usage(blocking.all_to_all(&[0f32; 3], &mut [0.0; 3]));
        usage(blocking.all_to_all_v(&[0f32; 3], &[1, 1], &mut [0.0; 2], &[1, 1]));
        usage(blocking.all_to_all_v(&[0f32; 3], &[1, 1, 1], &mut [0.0; 2], &[1, 1]));
        usage(blocking.send(&[0f32], 5));
        if comm.rank() == 0 {
            usage(blocking.gather(&[0f32], None, 0));
            usage(blocking.scatter(None, &mut [0f32], 0));
        }
        let f32s = testing::buffer(&[0f32; 2]);
        let mut i32s = testing::buffer(&[0i32; 4]);
        usage(comm.block_on(comm.all_gather(&f32s, &mut i32s)));
        assert_eq!(comm.world().traffic().bytes_sent(), 0);
        blocking.barrier()
    })
    .unwrap();
}
