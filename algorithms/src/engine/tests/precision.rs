//! Mixed precision: 16-bit parameters over 32-bit buckets, and the scaling of the loss.

use super::*;
use crate::engine::runner::HookStage;
use crate::optimizer::AdamW;

/// Numbers in 16 bits.
fn halves(dtype: DType, numbers: &[f32]) -> Buffer {
    let view = crate::engine::precision::narrow(&buffer(numbers), 0..numbers.len(), dtype).unwrap();
    let narrow = zeroed(dtype, numbers.len());
    narrow.write_all().unwrap().copy_from(&view).unwrap();
    narrow
}

#[test]
fn sixteen_bit_gradients_are_accumulated_and_communicated_in_32() {
    for (dtype, small) in [(DType::F16, 1.0 / 4096.0), (DType::BF16, 1.0 / 512.0)] {
        spawn(TransportKind::Shm, 2, |comm| {
            let mut engine = engine(&comm, vec![parameter("h", dtype, 3)], options(64, 64))?;
            assert_eq!(engine.telemetry().buckets(), [(DType::F32, 3)]);
            let pass = |engine: &mut DataParallel, mode, value: f32| {
                engine.begin(mode)?;
                engine.hooks().ready(0, &halves(dtype, &[value; 3]))?;
                engine.finish()
            };
            pass(&mut engine, Mode::Accumulate, 1.0)?;
            // In 16 bits, each of them would be lost next to the 1; the sum of all sixteen is not.
            for _ in 0..15 {
                pass(&mut engine, Mode::Accumulate, small)?;
            }
            pass(&mut engine, Mode::Synchronize, small)?;
            let expected = halves(dtype, &[1.0 + 16.0 * small; 3]);
            assert_eq!(engine.gradient(0)?.bytes_on_host()?, expected.read_all()?.bytes_on_host()?);
            assert_eq!(engine.gradient(0)?.dtype(), dtype);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn the_master_keeps_steps_that_16_bits_would_lose() {
    spawn(TransportKind::Thread, 2, |comm| {
        let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..options(64, 64) };
        let list = vec![parameter("h", DType::F16, 2), parameter("w", DType::F32, 2)];
        let mut engine = DataParallel::new(&comm, list, Arc::new(GradientAllReduce), options)?;
        assert_eq!(engine.telemetry().buckets(), [(DType::F32, 4)], "they share their buckets with f32");
        engine.set_learning_rate(1.0 / 8192.0);
        engine.set_parameter(0, &halves(DType::F16, &[1.0; 2]))?;
        let refused = engine.set_parameter(0, &buffer(&[1.0f32; 2])).unwrap_err().to_string();
        assert!(refused.contains("`h` was given 2 × f32; 2 × f16 were announced"), "{refused}");
        for _ in 0..32 {
            engine.begin(Mode::Synchronize)?;
            engine.hooks().ready(0, &halves(DType::F16, &[1.0; 2]))?;
            engine.hooks().ready_slice(1, &[1.0f32; 2])?;
            engine.finish()?;
            engine.step()?;
        }
        let expected = halves(DType::F16, &[1.0 - 32.0 / 8192.0; 2]);
        assert_eq!(engine.parameter(0)?.bytes_on_host()?, expected.read_all()?.bytes_on_host()?);
        assert_eq!(value(&engine, 1), [-32.0 / 8192.0; 2]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn parameters_that_are_no_numbers_to_train_are_refused() {
    let errors = spawn(TransportKind::Thread, 2, |comm| {
        let list = vec![parameter("w", DType::F32, 1), parameter("count", DType::I64, 1)];
        Ok(engine(&comm, list, EngineOptions::default()).err())
    });
    for error in errors.unwrap() {
        let text = error.unwrap().to_string();
        assert!(text.contains("`count` of i64 cannot be trained"), "{text}");
    }
}

fn scaled() -> EngineOptions {
    let scale = LossScale { initial: 1024.0, growth: 4.0, backoff: 0.5, interval: 2 };
    EngineOptions { loss_scale: Some(scale), ..options(40, 40) }
}

/// A pass with a loss whose gradients are all `g`, multiplied by the scale.
fn scaled_pass(engine: &mut DataParallel, mode: Mode, g: f32) -> Result<()> {
    let gradient = vec![g * engine.loss_scaling().scale() as f32; 10];
    pass(engine, mode, &[gradient.clone(), gradient])
}

#[test]
fn a_step_is_skipped_on_all_ranks_if_one_overflows() {
    for (transport, order) in
        transports().into_iter().flat_map(|t| [(t, Order::Listed), (t, Order::Observed)])
    {
        spawn(transport, 3, |comm| {
            let probe = Arc::new(Probe::new(|stage, _| match stage {
                HookStage::Gradients => Act::Mean,
                _ => Act::Nothing,
            }));
            let algorithm = AnyAlgorithm::from(Arc::clone(&probe));
            let options = EngineOptions { order, ..scaled() };
            let mut engine = trained_by(&comm, parameters(2, 10), algorithm, options, (1.0, 8.0))?;
            // Rank 1's gradients are infinite in the first and the third pass.
            let mut path = Vec::new();
            for step in 0..5 {
                let g = if comm.rank() == 1 && step % 2 == 0 && step < 4 { f32::INFINITY } else { 1.0 };
                engine.forward()?;
                scaled_pass(&mut engine, Mode::Synchronize, g)?;
                assert_eq!(engine.loss_scaling().overflowed(), step == 0 || step == 2);
                assert_eq!(engine.gradient(0).is_err(), engine.loss_scaling().overflowed());
                engine.step()?;
                assert!(!engine.loss_scaling().overflowed(), "a step uses it up");
                path.push((value(&engine, 1)[3], engine.steps(), engine.loss_scaling().scale()));
            }
            let expected =
                [(8.0, 0, 512.0), (7.0, 1, 512.0), (7.0, 1, 256.0), (6.0, 2, 256.0), (5.0, 3, 1024.0)];
            assert_eq!(path, expected);
            for stage in [HookStage::Forward, HookStage::Gradients, HookStage::Backward, HookStage::Step] {
                let calls = probe.log().into_iter().filter(|(at, _)| *at == stage).count();
                assert_eq!(calls, 3 * 2, "{stage:?}: in steps that were made, for two buckets");
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn scaled_gradients_accumulate_and_are_divided_once() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, parameters(2, 10), scaled())?;
        for _ in 0..2 {
            scaled_pass(&mut engine, Mode::Accumulate, 1.0)?;
            assert!(!engine.loss_scaling().overflowed());
            scaled_pass(&mut engine, Mode::Synchronize, 2.0)?;
            assert_eq!(gradient(&engine, 0), [3.0; 10]);
            engine.stepped()?;
        }
        // An overflow while accumulating counts, and is gone afterwards.
        scaled_pass(&mut engine, Mode::Accumulate, f32::NAN)?;
        scaled_pass(&mut engine, Mode::Synchronize, 1.0)?;
        assert!(engine.loss_scaling().overflowed());
        engine.stepped()?;
        scaled_pass(&mut engine, Mode::Synchronize, 1.0)?;
        assert_eq!((gradient(&engine, 1), engine.steps()), (vec![1.0; 10], 2));
        Ok(())
    })
    .unwrap();
}

#[test]
fn nothing_is_sent_before_the_pass_has_ended() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, parameters(2, 10), scaled())?;
        engine.initial().prepare()?;
        let barrier = || comm.blocking().barrier();
        barrier()?;
        let before = comm.world().traffic().bytes_sent();
        engine.begin(Mode::Synchronize)?;
        for index in [1, 0] {
            engine.hooks().ready_slice(index, &[1.0f32; 10])?;
        }
        assert_eq!(comm.world().traffic().bytes_sent(), before);
        engine.finish()
    })
    .unwrap();
}

#[test]
fn asynchronous_ranks_scale_on_their_own() {
    let scales = spawn(TransportKind::Tcp, 2, |comm| {
        let mut probe = Probe::new(|_, _| Act::Nothing);
        probe.synchronous = false;
        let mut engine = trained_by(&comm, parameters(2, 10), Arc::new(probe), scaled(), (1.0, 0.0))?;
        engine.initial().prepare()?;
        // Rank 1 makes more steps, and they overflow: no rank waits for another.
        for _ in 0..comm.rank() * 3 {
            scaled_pass(&mut engine, Mode::Synchronize, f32::INFINITY)?;
            engine.step()?;
        }
        Ok(engine.loss_scaling().scale())
    });
    assert_eq!(scales.unwrap(), [1024.0, 128.0]);
}

#[test]
fn the_scale_is_part_of_the_initial_state() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine =
            trained_by(&comm, parameters(1, 10), Arc::new(GradientAllReduce), scaled(), (1.0, 0.0))?;
        if comm.rank() == 0 {
            engine.scaler.as_mut().unwrap().update(true)?;
        }
        engine.initial().broadcast_state(&mut [])?;
        assert_eq!(engine.loss_scaling().scale(), 512.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn steps_that_are_left_out_are_not_counted() {
    let trained = |gap: Option<f32>, algorithm: fn() -> AnyAlgorithm| {
        let parameters = spawn(TransportKind::Thread, 2, |comm| {
            let options = EngineOptions { optimizer: Some(Arc::new(AdamW::default())), ..options(40, 40) };
            let mut engine = trained_by(&comm, parameters(2, 10), algorithm(), options, (0.1, 1.0))?;
            for step in 0..5 {
                let Some(g) = (if step == 2 { gap } else { Some(step as f32 + 1.0) }) else { continue };
                engine.forward()?;
                pass(&mut engine, Mode::Synchronize, &[vec![g; 10], vec![-g; 10]])?;
                if step == 2 { engine.left_out() } else { engine.step() }?;
            }
            Ok((value(&engine, 1), engine.steps()))
        });
        parameters.unwrap()[0].clone()
    };
    let gradients = || GradientAllReduce.into();
    let local = || AnyAlgorithm::from(LocalSgd { period: 1, ..LocalSgd::default() });
    assert_eq!(trained(Some(7.0), gradients), trained(None, gradients));
    let (with_gap, steps) = trained(Some(7.0), local);
    assert_eq!((with_gap, steps), (trained(None, local).0, 5), "other ranks may have made that step");
}

#[test]
fn an_overflow_under_a_codec_is_one_on_all_ranks() {
    for clip_norm in [None, Some(100.0)] {
        for (name, rate) in [("bytegrad", None), ("topk-ef", Some(0.5))] {
            spawn(TransportKind::Thread, 2, |comm| {
                let options = EngineOptions { skip_overflows: true, clip_norm, ..options(40, 40) };
                let algorithm = crate::registry::named(name)?;
                let mut engine = DataParallel::new(&comm, parameters(2, 10), algorithm, options)?;
                rate.into_iter().for_each(|rate: f64| engine.set_learning_rate(rate));
                for step in 0..3 {
                    let g = if step == 1 && comm.rank() == 1 { f32::INFINITY } else { 1.0 };
                    pass(&mut engine, Mode::Synchronize, &[vec![1.0; 10], vec![g; 10]])?;
                    assert_eq!(engine.loss_scaling().overflowed(), step == 1, "{name}");
                    if step == 1 { engine.left_out() } else { engine.stepped() }?;
                }
                assert_eq!(engine.steps(), 2);
                Ok(())
            })
            .unwrap();
        }
    }
    let refused = spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = DataParallel::new(
            &comm,
            parameters(1, 10),
            crate::registry::named("bytegrad")?,
            options(40, 40),
        )?;
        Ok(pass(&mut engine, Mode::Synchronize, &[vec![f32::NAN; 10]]).err())
    });
    for error in refused.unwrap() {
        let text = error.unwrap().to_string();
        assert!(text.contains("NaN"), "an error that names the element, unless asked otherwise: {text}");
    }
}

#[test]
fn what_is_not_finite_is_refused_where_it_would_be_remembered() {
    for name in ["gradient-tracking", "zero-one-adam", "zero-one-adam(freeze=1)"] {
        let refused = spawn(TransportKind::Thread, 2, |comm| {
            let options = EngineOptions { skip_overflows: true, ..options(40, 40) };
            let algorithm = crate::registry::named(name)?;
            let mut engine = DataParallel::new(&comm, parameters(2, 10), algorithm, options)?;
            engine.set_learning_rate(0.1);
            let first = pass(&mut engine, Mode::Synchronize, &[vec![1.0; 10], vec![1.0; 10]]);
            let first = first.and_then(|_| engine.stepped());
            // Rank 1 may give up in its second step before rank 0 has finished the first one.
            if comm.rank() == 1 {
                first?;
            }
            let g = if comm.rank() == 1 { f32::INFINITY } else { 1.0 };
            Ok(pass(&mut engine, Mode::Synchronize, &[vec![1.0; 10], vec![g; 10]]).err())
        });
        let error = refused.unwrap()[1].as_ref().unwrap().to_string();
        assert!(
            error.contains("is not finite on rank 1, in step 1") && error.contains("`loss_scale`"),
            "{name}: {error}"
        );
    }
}
