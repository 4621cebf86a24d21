//! Failures: whatever fails on one rank ends all of them, with its reason.

use super::*;

/// Fails on one rank, at one step.
#[derive(Debug)]
struct Fails {
    steps: AtomicUsize,
    rank: usize,
}

impl Algorithm for Fails {
    type State = ();

    fn name(&self) -> &'static str {
        "fails"
    }

    fn trigram(&self) -> Trigram {
        Algorithm::trigram(&GradientAllReduce)
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        if context.rank() == self.rank && self.steps.fetch_add(1, Ordering::SeqCst) == 2 {
            return Err(Error::usage("the plugin did not like it", "write a better one"));
        }
        context.comm().all_reduce(&mut bucket.gradients, ReduceOp::Sum).await
    }
}

#[test]
fn a_plugins_error_reaches_the_training_loop_of_every_rank() {
    for transport in TransportKind::ALL {
        let steps = spawn(transport, 3, |comm| {
            let algorithm = Arc::new(Fails { steps: AtomicUsize::new(0), rank: 1 });
            let mut engine =
                DataParallel::new(&comm, parameters(1, 10), algorithm, EngineOptions::default())?;
            let hooks = engine.hooks();
            for step in 0.. {
                let mut pass = || {
                    engine.begin(Mode::Synchronize)?;
                    hooks.ready_slice(0, &[1.0f32; 10])?;
                    engine.finish()
                };
                if let Err(error) = pass() {
                    let text = error.to_string();
                    assert!(text.contains("the plugin did not like it"), "rank {}: {text}", comm.rank());
                    return Ok(step);
                }
            }
            Ok(0)
        });
        // The verdict may find another rank at the end of the step before.
        let steps = steps.unwrap();
        assert!(steps[1] == 2 && steps.iter().all(|step| (1..=2).contains(step)), "{transport}: {steps:?}");
    }
}

/// Encodes what cannot all be encoded.
#[derive(Debug)]
struct Encodes;

impl Algorithm for Encodes {
    type State = Encoding;

    fn name(&self) -> &'static str {
        "encodes"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: false }
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
    for transport in TransportKind::ALL {
        let step = |comm: &Communicator| {
            let mut engine = DataParallel::new(comm, parameters(4, 10), Arc::new(Encodes), options(40, 80))?;
            let hooks = engine.hooks();
            engine.begin(Mode::Synchronize)?;
            for index in (0..4).rev() {
                let mut gradient = [1.0f32; 10];
                gradient[7] = if comm.rank() == 2 && index == 1 { f32::NAN } else { 1.0 };
                hooks.ready_slice(index, &gradient)?;
            }
            engine.finish()
        };
        let errors = spawn(transport, 3, |comm| Ok(step(&comm).err())).unwrap();
        for (rank, error) in errors.into_iter().map(Option::unwrap).enumerate() {
            match error {
                Error::NotFinite { place, tensor: Some(tensor), index, .. } => {
                    assert_eq!((rank, place.rank, &*tensor, index), (2, 2, "p1", 7), "{transport}");
                }
                other => assert!(rank != 2 && other.to_string().contains("is NaN on rank 2"), "{other}"),
            }
        }
    }
}

/// Panics on rank 1.
#[derive(Debug)]
struct Panics;

impl Algorithm for Panics {
    type State = ();

    fn name(&self) -> &'static str {
        "panics"
    }

    fn trigram(&self) -> Trigram {
        Algorithm::trigram(&GradientAllReduce)
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        assert!(context.rank() != 1, "on purpose");
        context.comm().all_reduce(&mut bucket.gradients, ReduceOp::Sum).await
    }
}

#[test]
fn a_plugins_panic_is_an_error_on_every_rank() {
    let step = |comm: &Communicator| {
        let mut engine =
            DataParallel::new(comm, parameters(1, 10), Arc::new(Panics), EngineOptions::default())?;
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(0, &[1.0f32; 10])?;
        engine.finish()
    };
    for error in spawn(TransportKind::Shm, 3, |comm| Ok(step(&comm).err())).unwrap() {
        let text = error.unwrap().to_string();
        assert!(text.contains("the algorithm panicked: on purpose"), "{text}");
    }
}

#[test]
fn a_deadline_set_late_holds_for_gradients_too() {
    let errors = spawn(TransportKind::Shm, 2, |comm| {
        let mut engine = engine(&comm, parameters(1, 10), EngineOptions::default())?;
        comm.set_deadline(Duration::from_millis(100));
        if comm.rank() == 1 {
            // Alive, but not in this operation, until rank 0 has given up.
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

#[test]
fn an_abandoned_pass_ends_the_others_instead_of_hanging_them() {
    let step = |comm: &Communicator| {
        let mut engine = engine(comm, parameters(1, 10), EngineOptions::default())?;
        engine.begin(Mode::Synchronize)?;
        if comm.rank() == 0 {
            return Ok(());
        }
        engine.hooks().ready_slice(0, &[1.0f32; 10])?;
        engine.finish()
    };
    let errors = spawn(TransportKind::Shm, 2, |comm| Ok(step(&comm).err()));
    let text = errors.unwrap().remove(1).unwrap().to_string();
    assert!(text.contains("rank 0") && text.contains("never finished"), "{text}");
}
