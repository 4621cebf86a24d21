//! Passes: overlap, order, accumulation, and that no gradient is ever left out silently.

use super::*;
use crate::optimizer::AdamW;
use crate::sgp::Sgp;

#[test]
fn gradients_become_their_mean_over_many_steps() {
    for transport in transports() {
        spawn(transport, 3, |comm| {
            let mut engine = engine(&comm, parameters(7, 1000), options(4000, 9000))?;
            let hooks = engine.hooks();
            for step in 0..5 {
                engine.begin(Mode::Synchronize)?;
                for index in (0..7).rev() {
                    hooks.ready_slice(index, &vec![(comm.rank() * 3 + index + step) as f32; 1000])?;
                }
                engine.finish()?;
                for index in 0..7 {
                    assert_eq!(gradient(&engine, index), vec![(3 + index + step) as f32; 1000]);
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn the_first_bucket_is_on_its_way_before_the_last_gradient_is_ready() {
    for transport in transports() {
        spawn(transport, 2, |comm| {
            let mut engine = engine(&comm, parameters(4, 1000), options(4000, 4000))?;
            let hooks = engine.hooks();
            // With the feature `cuda`, ranks exchange their GPUs with the first message.
            engine.begin(Mode::Synchronize)?;
            for index in (0..4).rev() {
                hooks.ready_slice(index, &[1.0f32; 1000])?;
            }
            engine.finish()?;
            let sent = || comm.world().traffic().bytes_sent();
            let before = sent();
            engine.begin(Mode::Synchronize)?;
            hooks.ready_slice(3, &[1.0f32; 1000])?;
            // All bytes of the first bucket leave while three gradients are still missing; the test has its own
            // deadline.
            let shared = matches!(transport, TransportKind::Shm | TransportKind::Mixed);
            let bucket = 4000 + if shared { NOTICE_BYTES } else { HEADER_BYTES } as u64;
            let started = Instant::now();
            while sent() - before < bucket {
                assert!(
                    started.elapsed() < Duration::from_secs(30),
                    "nothing was sent before the last gradient"
                );
                std::thread::yield_now();
            }
            // GPUs that read each other's memory send no bucket; their ranks agree on each operation.
            if queue().is_host() {
                assert_eq!(sent() - before, bucket, "and nothing of the buckets that are not complete");
            }
            for index in (0..3).rev() {
                hooks.ready_slice(index, &[1.0f32; 1000])?;
            }
            engine.finish()
        })
        .unwrap();
    }
}

#[test]
fn ranks_may_complete_buckets_in_any_order() {
    spawn(TransportKind::Shm, 4, |comm| {
        let mut engine = engine(&comm, parameters(8, 500), options(2000, 2000))?;
        let hooks = engine.hooks();
        for step in 0..20 {
            engine.begin(Mode::Synchronize)?;
            for at in 0..8 {
                let index = (at * 3 + comm.rank() * 5 + step) % 8;
                hooks.ready_slice(index, &vec![(index + comm.rank()) as f32; 500])?;
            }
            engine.finish()?;
            for index in 0..8 {
                assert_eq!(gradient(&engine, index)[0], index as f32 + 1.5);
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_unused_parameter_is_an_error_that_names_it_on_every_rank() {
    for transport in transports() {
        let step = |comm: &Communicator| {
            let mut engine = engine(comm, parameters(3, 10), options(40, 40))?;
            let hooks = engine.hooks();
            engine.begin(Mode::Synchronize)?;
            for index in [2, 1, 0] {
                if comm.rank() != 1 || index != 1 {
                    hooks.ready_slice(index, &[1.0f32; 10])?;
                }
            }
            engine.finish()
        };
        // The verdict may reach a slow rank anywhere, even before its first step.
        let errors = spawn(transport, 3, |comm| Ok(step(&comm).err()));
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            let text = error.unwrap().to_string();
            assert!(text.contains("`p1`"), "{transport}, rank {rank}: {text}");
        }
    }
}

#[test]
fn an_unused_parameter_counts_as_zero_when_asked() {
    spawn(TransportKind::Thread, 2, |comm| {
        let options = EngineOptions { unused: Unused::Zero, ..options(40, 40) };
        let mut engine = engine(&comm, parameters(3, 10), options)?;
        let hooks = engine.hooks();
        for step in 0..3 {
            engine.begin(Mode::Synchronize)?;
            for index in 0..3 {
                // Parameter 1 on rank 0 only, parameter 2 nowhere.
                if index == 0 || index == 1 && comm.rank() == 0 {
                    hooks.ready_slice(index, &[(4 + step) as f32; 10])?;
                }
            }
            engine.finish()?;
            let want = [(4 + step) as f32, (4 + step) as f32 / 2.0, 0.0];
            for (index, want) in want.into_iter().enumerate() {
                assert_eq!(gradient(&engine, index), vec![want; 10], "no leftover of the last step");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_parameter_that_no_rank_uses_is_left_as_it_is() {
    let bare = || AnyAlgorithm::from(GradientAllReduce);
    let local = || AnyAlgorithm::from(LocalSgd { period: 1, ..LocalSgd::default() });
    for (algorithm, overlap) in
        [(bare(), Overlap::Backward), (local(), Overlap::Backward), (bare(), Overlap::Forward)]
    {
        spawn(TransportKind::Thread, 2, |comm| {
            let options = EngineOptions {
                unused: Unused::Zero,
                optimizer: Some(Arc::new(AdamW { weight_decay: 0.5, ..AdamW::default() })),
                overlap,
                ..options(80, 80)
            };
            let mut engine = trained_by(&comm, parameters(3, 10), algorithm.clone(), options, (0.1, 1.0))?;
            let hooks = engine.hooks();
            let mut before = vec![vec![1.0; 10]; 3];
            for step in 0..4 {
                engine.forward()?;
                engine.begin(Mode::Synchronize)?;
                // Parameter 1 on rank 0 only, parameter 2 in the first step, so that momentum would move it later.
                for index in 0..3 {
                    if index == 0 || index == 1 && comm.rank() == 0 || index == 2 && step == 0 {
                        hooks.ready_slice(index, &[1.0f32; 10])?;
                    }
                }
                engine.finish()?;
                assert_eq!([0, 1, 2].map(|index| engine.is_idle(index)), [false, false, step > 0]);
                engine.step()?;
                let now: Vec<_> = (0..3).map(|index| value(&engine, index)).collect();
                let moved = [0, 1, 2].map(|index| now[index] != before[index]);
                assert_eq!(moved, [true, true, step == 0], "step {step}");
                before = now;
            }
            engine.leave_idle(&[3]).unwrap_err();
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn accumulated_passes_send_nothing_and_count_in_the_next_synchronized_one() {
    for transport in transports() {
        spawn(transport, 2, |comm| {
            let mut engine = engine(&comm, parameters(2, 5), options(20, 20))?;
            let hooks = engine.hooks();
            let pass = |engine: &mut DataParallel, mode, value: f32| {
                engine.begin(mode)?;
                for index in [1, 0] {
                    hooks.ready_slice(index, &[value + comm.rank() as f32; 5])?;
                }
                engine.finish()
            };
            for _ in 0..2 {
                let before = comm.world().traffic().bytes_sent();
                pass(&mut engine, Mode::Accumulate, 1.0)?;
                pass(&mut engine, Mode::Accumulate, 10.0)?;
                assert_eq!(comm.world().traffic().bytes_sent(), before);
                assert!(engine.gradient(0).is_err(), "an unsynchronized gradient is not handed out");
                pass(&mut engine, Mode::Synchronize, 100.0)?;
                assert_eq!(gradient(&engine, 0), [112.5; 5]);
            }
            // A parameter with a gradient only in an accumulating pass still counts.
            engine.begin(Mode::Accumulate)?;
            hooks.ready_slice(0, &[1.0f32; 5])?;
            engine.finish()?;
            engine.begin(Mode::Synchronize)?;
            hooks.ready_slice(1, &[2.0f32; 5])?;
            engine.finish()?;
            assert_eq!((gradient(&engine, 0)[0], gradient(&engine, 1)[0]), (1.0, 2.0));
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn mixed_types_and_large_parameters_are_synchronized() {
    spawn(TransportKind::Tcp, 2, |comm| {
        let list = vec![
            parameter("w", DType::F64, 30_000),
            parameter("b", DType::F32, 3),
            parameter("none", DType::F32, 0),
            parameter("v", DType::F64, 1),
        ];
        let mut engine = engine(&comm, list, options(64, 64))?;
        let hooks = engine.hooks();
        engine.begin(Mode::Synchronize)?;
        hooks.ready_slice(3, &[comm.rank() as f64])?;
        hooks.ready_slice::<f32>(2, &[])?;
        hooks.ready_slice(1, &[comm.rank() as f32; 3])?;
        hooks.ready_slice(0, &vec![comm.rank() as f64; 30_000])?;
        engine.finish()?;
        assert_eq!(*engine.gradient(3)?.bytes_on_host()?, 0.5f64.to_le_bytes());
        assert_eq!(gradient(&engine, 1), [0.5; 3]);
        assert_eq!(*engine.gradient(0)?.bytes_on_host()?, 0.5f64.to_le_bytes().repeat(30_000));
        Ok(())
    })
    .unwrap();
}

#[test]
fn misuse_of_hooks_is_refused_by_name() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, parameters(2, 4), options(16, 16))?;
        let hooks = engine.hooks();
        let refused = |outcome: Result<()>, what: &str| {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains(what), "{text}");
        };
        refused(hooks.ready_slice(0, &[0.0f32; 4]), "`p0` got a gradient outside a backward pass");
        engine.begin(Mode::Synchronize)?;
        refused(hooks.ready_slice(0, &[0.0f32; 3]), "`p0` has a gradient of 3 × f32");
        refused(hooks.ready_slice(0, &[0.0f64; 4]), "`p0` has a gradient of 4 × f64");
        refused(hooks.ready_slice(7, &[0.0f32; 4]), "parameter 7 does not exist");
        hooks.ready_slice(0, &[0.0f32; 4])?;
        refused(hooks.ready_slice(0, &[0.0f32; 4]), "`p0` was marked ready twice");
        refused(engine.begin(Mode::Synchronize), "began before the last one was finished");
        drop(engine);
        refused(hooks.ready_slice(1, &[0.0f32; 4]), "the engine is gone");
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranks_with_different_models_are_told_before_the_first_step() {
    let errors = spawn(TransportKind::Shm, 3, |comm| {
        let count = if comm.rank() == 2 { 5 } else { 4 };
        Ok(engine(&comm, parameters(count, 10), EngineOptions::default()).err())
    });
    for error in errors.unwrap() {
        let text = error.unwrap().to_string();
        let said = "the number of parameters is 4 on rank 0, and parameter 4 is `p4` of f32 [10] on rank 2";
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn no_parameters_are_no_problem() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, Vec::new(), EngineOptions::default())?;
        engine.begin(Mode::Synchronize)?;
        engine.finish()
    })
    .unwrap();
}

#[test]
fn buckets_are_not_made_anew_within_a_pass() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, parameters(2, 4), EngineOptions::default())?;
        let hooks = engine.hooks();
        engine.begin(Mode::Synchronize)?;
        hooks.ready_slice(1, &[1.0f32; 4])?;
        let text = engine.initial().prepare().unwrap_err().to_string();
        assert!(text.contains("a backward pass is under way"), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_step_that_an_algorithm_waits_for_is_not_left_out() {
    type Next = fn(&mut DataParallel) -> Result<()>;
    let others: [Next; 3] = [
        |engine| engine.begin(Mode::Synchronize),
        |engine| engine.settle(),
        |engine| engine.switch(Arc::new(GradientAllReduce)),
    ];
    for next in others {
        spawn(TransportKind::Thread, 1, |comm| {
            let mut engine =
                trained_by(&comm, parameters(1, 4), Arc::new(Sgp::default()), options(16, 16), (0.1, 1.0))?;
            pass(&mut engine, Mode::Synchronize, &[vec![1.0; 4]])?;
            let text = next(&mut engine).unwrap_err().to_string();
            assert!(text.contains("sgp waits for the step"), "{text}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn gradients_that_no_algorithm_waits_for_may_be_left_out() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, parameters(1, 4), options(16, 16))?;
        for _ in 0..2 {
            pass(&mut engine, Mode::Synchronize, &[vec![1.0; 4]])?;
        }
        engine.settle()
    })
    .unwrap();
}

#[test]
fn gradients_of_no_elements_live_in_their_buckets_too() {
    for order in [Order::Listed, Order::Observed] {
        spawn(TransportKind::Shm, 2, |comm| {
            let nothing = |name: &str, dtype| Parameter { name: name.into(), dtype, shape: vec![0, 3] };
            let parameters =
                vec![nothing("a", DType::F64), nothing("b", DType::F32), parameter("c", DType::F32, 2)];
            let mut engine = engine(&comm, parameters, EngineOptions { order, ..options(4, 4) })?;
            let hooks = engine.hooks();
            for _ in 0..3 {
                engine.begin(Mode::Synchronize)?;
                hooks.with_gradient::<f32, _>(2, |g| g.fill(comm.rank() as f32))?;
                hooks.ready_in_place(2)?;
                hooks.with_gradient::<f32, _>(1, |g| assert!(g.is_empty()))?;
                hooks.ready_in_place(1)?;
                hooks.with_gradient::<f64, _>(0, |g| assert!(g.is_empty()))?;
                hooks.ready_in_place(0)?;
                engine.finish()?;
                assert_eq!(gradient(&engine, 2), [0.5; 2]);
            }
            engine.begin(Mode::Synchronize)?;
            hooks.ready_rows(0, &[], &zeroed(DType::F64, 0))?;
            hooks.ready_rows(1, &[], &zeroed(DType::F32, 0))?;
            hooks.ready_slice(2, &[1.0f32; 2])?;
            engine.finish()
        })
        .unwrap();
    }
}
