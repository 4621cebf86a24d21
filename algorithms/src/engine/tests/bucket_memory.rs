//! Gradients and parameters that a framework writes and reads directly in their buckets.

use super::*;

/// Address of the first element of the gradient of a parameter, and of the parameter itself, in host memory.
fn addresses(engine: &DataParallel, parameter: usize) -> (*mut f32, *mut f32) {
    let memory = engine.bucket_memory().unwrap();
    let found = memory.iter().find_map(|bucket| {
        let (_, range) = bucket.members.iter().find(|(index, _)| *index == parameter)?;
        let first = |span: &hexagram_logical::Span| span.address().cast::<f32>().wrapping_add(range.start);
        Some((first(&bucket.gradients), first(bucket.parameters.as_ref().unwrap())))
    });
    found.unwrap()
}

#[test]
fn what_lies_in_the_buckets_is_communicated_and_stepped_with() {
    spawn(TransportKind::Shm, 2, |comm| {
        let options = EngineOptions { queue: hexagram_logical::Queue::host(), ..options(4, 4) };
        let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..options };
        let mut engine = DataParallel::new(&comm, parameters(2, 3), GradientAllReduce, options)?;
        engine.set_learning_rate(1.0);
        engine.initial().prepare()?;
        let places = [addresses(&engine, 0), addresses(&engine, 1)];
        engine.begin(Mode::Accumulate)?;
        engine.hooks().ready_in_bucket(0)?;
        engine.finish()?;
        engine.begin(Mode::Synchronize)?;
        for (parameter, (gradient, _)) in places.iter().enumerate().rev() {
            for element in 0..3 {
                // SAFETY: three elements, in buckets that `engine` keeps; this thread owns them until they are ready.
                unsafe { gradient.add(element).write((10 * parameter + element + 2 * comm.rank()) as f32) };
            }
            engine.hooks().ready_in_bucket(parameter)?;
        }
        engine.finish_and_step()?;
        for (parameter, (gradient, values)) in places.into_iter().enumerate() {
            // SAFETY: as above, after the step.
            let there = |first: *mut f32| [0, 1, 2].map(|element| unsafe { first.add(element).read() });
            let mean = [1.0, 2.0, 3.0].map(|mean| mean + 10.0 * parameter as f32);
            assert_eq!((there(gradient), there(values)), (mean, mean.map(|mean| -mean)));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_new_cut_of_the_buckets_shows_and_keeps_what_was_there() {
    spawn(TransportKind::Thread, 2, |comm| {
        let options =
            EngineOptions { order: Order::Observed, queue: hexagram_logical::Queue::host(), ..options(4, 4) };
        let mut engine = DataParallel::new(&comm, parameters(2, 1), LocalSgd::default(), options)?;
        let before = engine.generation();
        let old = engine.bucket_memory()?;
        engine.set_parameter(1, &Buffer::from_slice(&[7.0f32])?)?;
        pass(&mut engine, Mode::Synchronize, &[vec![1.0], vec![2.0]])?;
        assert_ne!(engine.generation(), before);
        let (gradient, value) = addresses(&engine, 1);
        // SAFETY: after `finish` this thread owns them, in buckets that the engine keeps.
        assert_eq!(unsafe { (gradient.read(), value.read()) }, (2.0, 7.0));
        engine.stepped()?;
        drop(engine);
        // Views of the framework may outlive the engine.
        assert_eq!(old[0].gradients.len(), 1);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_hook_that_exchanges_a_buffer_shows() {
    spawn(TransportKind::Thread, 2, |comm| {
        let options = EngineOptions { queue: hexagram_logical::Queue::host(), ..options(4, 4) };
        let mut engine =
            DataParallel::new(&comm, parameters(1, 1), crate::d_psgd::DPsgd::default(), options)?;
        for step in 0..3 {
            engine.forward()?;
            pass(&mut engine, Mode::Synchronize, &[vec![1.0]])?;
            let (_, value) = addresses(&engine, 0);
            // SAFETY: between `finish` and `stepped` this thread owns it, in a bucket that the engine keeps.
            unsafe {
                assert_eq!(value.read(), step as f32 * 0.5, "step {step}");
                value.write(value.read() + comm.rank() as f32);
            }
            let before = engine.generation();
            engine.stepped()?;
            assert_eq!(engine.generation(), before, "nothing moves after the step");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn sixteen_bits_have_no_gradient_of_their_own_there() {
    spawn(TransportKind::Thread, 1, |comm| {
        let half = vec![parameter("half", DType::BF16, 2)];
        let mut engine = DataParallel::new(&comm, half, GradientAllReduce, options(4, 4))?;
        engine.begin(Mode::Synchronize)?;
        let error = engine.hooks().ready_in_bucket(0).unwrap_err().to_string();
        assert!(error.contains("`half`") && error.contains("hand over a tensor"), "{error}");
        assert!(engine.finish().is_err());
        Ok(())
    })
    .unwrap();
}
