//! Failures: an error on one rank ends all of them, with its reason.

use super::*;
use crate::engine::runner::HookStage;
use std::time::Duration;

/// In every hook except `settle`, which is called without it, rank 1 fails in its second step.
fn fails_in(stage: HookStage, how: fn() -> Act) -> Arc<Probe> {
    Arc::new(Probe::new(move |at, context| match at == stage && context.rank() == 1 {
        true if context.step() == 1 || matches!(stage, HookStage::Start | HookStage::Settle) => how(),
        _ => Act::Mean,
    }))
}

/// The error that ends training, if one does.
fn train(comm: &Communicator, probe: Arc<Probe>) -> Option<Error> {
    let train = || {
        let mut engine = trained_by(comm, parameters(2, 10), probe, options(40, 40), (0.1, 0.0))?;
        for _ in 0..3 {
            engine.forward()?;
            pass(&mut engine, Mode::Synchronize, &[vec![1.0; 10], vec![1.0; 10]])?;
            engine.step()?;
        }
        engine.settle()
    };
    train().err()
}

const STAGES: [HookStage; 6] = [
    HookStage::Start,
    HookStage::Forward,
    HookStage::Gradients,
    HookStage::Backward,
    HookStage::Step,
    HookStage::Settle,
];

#[test]
fn a_plugins_error_reaches_the_training_loop_of_every_rank_from_every_hook() {
    for (transport, stage) in transports().into_iter().flat_map(|t| STAGES.map(|stage| (t, stage))) {
        let errors = spawn(transport, 3, |comm| Ok(train(&comm, fails_in(stage, || Act::Fail))));
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            let text = error.unwrap().to_string();
            let reason = text.contains("the plugin did not like it");
            assert!(reason, "{stage:?} over {transport}, rank {rank}: {text}");
        }
    }
}

#[test]
fn a_plugins_panic_is_an_error_on_every_rank_from_every_hook() {
    for (transport, stage) in transports().into_iter().flat_map(|t| STAGES.map(|stage| (t, stage))) {
        let errors = spawn(transport, 3, |comm| Ok(train(&comm, fails_in(stage, || Act::Panic))));
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            let text = error.unwrap().to_string();
            let reason = text.contains("the algorithm panicked: the plugin panicked on purpose");
            assert!(reason, "{stage:?} over {transport}, rank {rank}: {text}");
        }
    }
}

/// Encodes values, some of which cannot be encoded.
#[derive(Debug, Clone)]
struct Encodes;

impl Algorithm for Encodes {
    type State = Encoding;

    fn about(&self) -> About {
        About::new("encodes", Trigram { centralized: true, synchronous: true, full_precision: false })
    }

    async fn state(&self, context: &Context, _: &Bucket) -> Result<Encoding> {
        Ok(context.encoding(Arc::new(Half::F16), Feedback::None))
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        encoding: &mut Encoding,
        bucket: &mut Bucket,
    ) -> Result<()> {
        context.mean_encoded(&mut bucket.gradients, encoding).await
    }
}

#[test]
fn an_element_that_cannot_be_encoded_is_named_by_rank_tensor_and_index() {
    for transport in transports() {
        let step = |comm: &Communicator| {
            let mut engine = DataParallel::new(comm, parameters(4, 10), Arc::new(Encodes), options(40, 80))?;
            let hooks = engine.hooks();
            // If ranks read each other's memory, an error is known one step later.
            (0..3).try_for_each(|_| {
                engine.begin(Mode::Synchronize)?;
                for index in (0..4).rev() {
                    let mut gradient = [1.0f32; 10];
                    gradient[7] = if comm.rank() == 2 && index == 1 { f32::NAN } else { 1.0 };
                    hooks.ready_slice(index, &gradient)?;
                }
                engine.finish()
            })
        };
        let errors = spawn(transport, 3, |comm| Ok(step(&comm).err())).unwrap();
        let errors: Vec<Error> = errors.into_iter().map(Option::unwrap).collect();
        // A device names the element in its memory, on its own rank.
        if errors[2].to_string().contains("is NaN") && !matches!(errors[2], Error::NotFinite { .. }) {
            let blamed = |error: &Error| error.to_string().contains("rank 2");
            assert!(!queue().is_host() && errors[..2].iter().all(blamed), "{errors:?}");
            continue;
        }
        for (rank, error) in errors.into_iter().enumerate() {
            match error {
                Error::NotFinite { place, tensor, index, .. } => {
                    assert_eq!((rank, place.rank), (2, 2), "{transport}");
                    // A device reports an error late, when the bucket is no longer known.
                    let expected = if queue().is_host() { Some(("p1", 7)) } else { None };
                    let named = tensor.as_deref().map(|tensor| (tensor, index));
                    assert_eq!(named, expected, "{transport}");
                }
                other => assert!(rank != 2 && other.to_string().contains("is NaN on rank 2"), "{other}"),
            }
        }
    }
}

#[test]
fn a_deadline_set_late_holds_for_gradients_too() {
    let errors = spawn(TransportKind::Shm, 2, |comm| {
        let mut engine = engine(&comm, parameters(1, 10), EngineOptions::default())?;
        comm.set_deadline(Duration::from_millis(100));
        if comm.rank() == 1 {
            // Alive, but not in this operation, until rank 0 has failed.
            let started = Instant::now();
            while comm.world().health().verdict().is_none() {
                assert!(started.elapsed() < Duration::from_secs(30), "rank 0 never gave up");
                std::thread::yield_now();
            }
            return Ok(None);
        }
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(0, &[1.0f32; 10])?;
        Ok(engine.finish().err())
    });
    let error = errors.unwrap().remove(0).unwrap();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
}

/// The error of the other ranks, waiting in a pass, when rank 0 leaves its pass in some way.
fn leaves_a_pass(how: impl Fn(DataParallel) -> Result<()> + Sync, reason: &str) {
    for transport in [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp] {
        let all_are_there = std::sync::Barrier::new(3);
        let errors = spawn(transport, 3, |comm| {
            let mut engine = engine(&comm, parameters(1, 10), options(40, 40))?;
            engine.initial().prepare()?;
            all_are_there.wait();
            if comm.rank() == 0 {
                engine.begin(Mode::Synchronize)?;
                return Ok(how(engine).err());
            }
            Ok(pass(&mut engine, Mode::Synchronize, &[vec![1.0; 10]]).err())
        });
        for error in errors.unwrap().into_iter().skip(1) {
            let text = error.unwrap().to_string();
            assert!(text.contains("rank 0") && text.contains(reason), "{transport}: {text}");
        }
    }
}

#[test]
fn an_abandoned_pass_ends_the_others_instead_of_hanging_them() {
    let drops = |engine: DataParallel| {
        drop(engine);
        Ok(())
    };
    leaves_a_pass(drops, "never finished");
}

#[test]
fn an_error_of_the_training_thread_in_a_pass_is_what_the_others_are_told() {
    let failed = |mut engine: DataParallel| {
        engine.hooks().ready_slice(0, &[1.0f32; 9]).unwrap_err();
        engine.finish()
    };
    leaves_a_pass(failed, "`p0` has a gradient of 9 × f32");
    let failed_and_dropped = |engine: DataParallel| engine.hooks().ready_slice(0, &[1.0f32; 9]);
    leaves_a_pass(failed_and_dropped, "`p0` has a gradient of 9 × f32");
}

#[test]
fn a_panic_of_the_training_thread_in_a_pass_ends_the_others() {
    let panics = |engine: DataParallel| {
        let panicking = std::panic::AssertUnwindSafe(|| {
            let _engine = engine;
            panic!("on purpose")
        });
        std::panic::catch_unwind(panicking).map_err(|_| Error::usage("it panicked", "as it should"))
    };
    leaves_a_pass(panics, "the training thread panicked");
}

#[test]
fn a_rank_that_leaves_between_steps_ends_the_others() {
    for transport in [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp] {
        let errors = spawn(transport, 3, |comm| {
            let mut engine = engine(&comm, parameters(1, 10), options(40, 40))?;
            for _ in 0..3 {
                if let Err(error) = pass(&mut engine, Mode::Synchronize, &[vec![1.0; 10]]) {
                    return Ok(Some(error));
                }
                if comm.rank() == 0 {
                    return Ok(None);
                }
            }
            Ok(None)
        });
        for error in errors.unwrap().into_iter().skip(1) {
            let text = error.unwrap().to_string();
            assert!(text.contains("rank 0"), "{transport}: {text}");
        }
    }
}

#[test]
fn an_error_between_steps_ends_the_others_with_its_reason() {
    let errors = spawn(TransportKind::Tcp, 2, |comm| {
        let mut engine =
            trained_by(&comm, parameters(1, 10), Arc::new(GradientAllReduce), options(40, 40), (0.1, 0.0))?;
        for step in 0..3 {
            if comm.rank() == 0 && step == 1 {
                engine.set_learning_rate(f64::NAN);
            }
            let outcome = pass(&mut engine, Mode::Synchronize, &[vec![1.0; 10]]);
            if let Err(error) = outcome.and_then(|()| engine.step()) {
                return Ok(Some(error));
            }
        }
        Ok(None)
    });
    for error in errors.unwrap() {
        let text = error.unwrap().to_string();
        assert!(text.contains("the learning rate is NaN"), "{text}");
    }
}
