//! The optimizers of the engine against closed forms, and options that are refused.

use super::*;
use crate::optimizer::{Adam, AdamW, Members, Optimizer, ParameterGroup};

/// The parameter after each step with these gradients, from `start`, with γ = 0.1.
fn run(optimizer: impl Optimizer + Clone, start: f64, gradients: &[f64]) -> Vec<f64> {
    let found = spawn(TransportKind::Thread, 2, |comm| {
        let list = vec![parameter("x", DType::F64, 1)];
        let options = EngineOptions { optimizer: Some(Arc::new(optimizer.clone())), ..options(8, 8) };
        let mut engine = DataParallel::new(&comm, list, Arc::new(GradientAllReduce), options)?;
        engine.set_learning_rate(0.1);
        engine.set_parameter(0, &buffer(&[start]))?;
        let mut path = Vec::new();
        for gradient in gradients {
            engine.begin(Mode::Synchronize)?;
            engine.hooks().ready_slice(0, &[*gradient])?;
            engine.finish()?;
            engine.step()?;
            path.push(bytemuck::pod_read_unaligned(&engine.parameter(0)?.bytes_on_host()?));
        }
        Ok(path)
    });
    found.unwrap().remove(0)
}

fn close(found: Vec<f64>, expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found} and not {expected}");
    }
}

#[test]
fn sgd() {
    close(run(Sgd::default(), 1.0, &[1.0, 2.0, -3.0]), &[0.9, 0.7, 1.0]);
}

#[test]
fn sgd_with_momentum() {
    // u: 1, 1.9, 2.71
    let optimizer = Sgd { momentum: 0.9, ..Sgd::default() };
    close(run(optimizer, 1.0, &[1.0; 3]), &[0.9, 0.71, 0.439]);
}

#[test]
fn sgd_with_nesterovs_momentum() {
    // d + μu: 1.9, 2.71, 3.439
    let optimizer = Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() };
    close(run(optimizer, 1.0, &[1.0; 3]), &[0.81, 0.539, 0.1951]);
}

#[test]
fn sgd_with_weight_decay() {
    let decays = Sgd { weight_decay: 0.5, ..Sgd::default() };
    close(run(decays, 1.0, &[0.0; 3]), &[0.95, 0.9025, 0.857375]);
    // d: 0.5, 0.475; u: 0.5, 0.925
    let with_momentum = Sgd { momentum: 0.9, ..decays };
    close(run(with_momentum, 1.0, &[0.0; 2]), &[0.95, 0.8575]);
}

#[test]
fn adam() {
    let optimizer = Adam { epsilon: 0.0, ..Adam::default() };
    close(run(optimizer, 1.0, &[5.0; 4]), &[0.9, 0.8, 0.7, 0.6]);
    // m: 0.1, −0.11; v: 0.001, 0.004999; divided by 1 − βᵗ: −0.11 / 0.19 and 0.004999 / 0.001999.
    let second = 0.1 * (0.11 / 0.19) / (0.004999f64 / 0.001999).sqrt();
    close(run(optimizer, 1.0, &[1.0, -2.0]), &[0.9, 0.9 + second]);
    let hesitant = Adam { epsilon: 1.0, ..Adam::default() };
    close(run(hesitant, 1.0, &[1.0]), &[0.95]);
}

#[test]
fn adamw_decays_weights_apart_from_its_moments() {
    let optimizer = AdamW { weight_decay: 0.5, ..AdamW::default() };
    close(run(optimizer, 1.0, &[0.0; 3]), &[0.95, 0.9025, 0.857375]);
}

#[test]
fn options_that_cannot_be_meant_are_refused() {
    let with = |optimizer: Arc<dyn Optimizer>| EngineOptions {
        optimizer: Some(optimizer),
        ..EngineOptions::default()
    };
    let clipping = |limit| EngineOptions { clip_norm: Some(limit), ..EngineOptions::default() };
    let scaling = |scale| EngineOptions { loss_scale: Some(scale), ..EngineOptions::default() };
    let refused = [
        with(Arc::new(Sgd { momentum: 1.5, ..Sgd::default() })),
        with(Arc::new(Sgd { nesterov: true, ..Sgd::default() })),
        with(Arc::new(Sgd { weight_decay: f64::NAN, ..Sgd::default() })),
        with(Arc::new(Adam { beta1: 1.0, ..Adam::default() })),
        with(Arc::new(Adam { beta2: -0.1, ..Adam::default() })),
        with(Arc::new(Adam { epsilon: f64::INFINITY, ..Adam::default() })),
        clipping(0.0),
        clipping(f64::NAN),
        scaling(LossScale { initial: 0.0, ..LossScale::default() }),
        scaling(LossScale { growth: 0.5, ..LossScale::default() }),
        scaling(LossScale { backoff: 1.0, ..LossScale::default() }),
        scaling(LossScale { interval: 0, ..LossScale::default() }),
        EngineOptions { bucket_bytes: 0, ..EngineOptions::default() },
        EngineOptions { first_bucket_bytes: 0, ..EngineOptions::default() },
        EngineOptions { streams: 0, ..EngineOptions::default() },
        EngineOptions { streams: 99_999, ..EngineOptions::default() },
    ];
    for options in refused {
        let errors =
            spawn(
                TransportKind::Thread,
                2,
                |comm| Ok(engine(&comm, parameters(1, 1), options.clone()).err()),
            );
        for error in errors.unwrap() {
            assert!(matches!(error, Some(Error::Usage { .. })), "{options:?}");
        }
    }
}

#[test]
fn learning_rates_that_cannot_be_meant_are_refused() {
    for rate in [-0.1, f64::NAN, f64::INFINITY] {
        let error = spawn(TransportKind::Thread, 1, |comm| {
            let algorithm = Arc::new(GradientAllReduce);
            let mut engine = trained_by(&comm, parameters(1, 1), algorithm, options(4, 4), (rate, 0.0))?;
            Ok(engine.begin(Mode::Synchronize).err())
        });
        let text = error.unwrap().remove(0).unwrap().to_string();
        assert!(text.contains("learning rate"), "{text}");
    }
}

/// Parameters after some steps of several buckets, with the optimizer after all buckets or after each.
fn several_buckets(at_once: bool, clip_norm: Option<f64>) -> Vec<u8> {
    let found = spawn(TransportKind::Shm, 2, |comm| {
        let optimizer: Option<Arc<dyn Optimizer>> = Some(Arc::new(Adam::default()));
        let options = EngineOptions { optimizer, clip_norm, ..options(40, 80) };
        let mut engine = DataParallel::new(&comm, parameters(6, 10), Arc::new(GradientAllReduce), options)?;
        engine.set_learning_rate(0.1);
        for step in 0..4 {
            engine.begin(Mode::Synchronize)?;
            for index in (0..6).rev() {
                let value = (step * 7 + index * 3 + comm.rank()) as f32 * 0.37 - 2.0;
                engine.hooks().ready_slice(index, &[value; 10])?;
            }
            if at_once {
                engine.finish_and_step()?;
            } else {
                engine.finish()?;
                engine.step()?;
            }
        }
        let mut all = Vec::new();
        for index in 0..6 {
            all.extend_from_slice(&engine.parameter(index)?.bytes_on_host()?);
        }
        Ok(all)
    });
    found.unwrap().remove(0)
}

#[test]
fn to_step_bucket_by_bucket_is_to_step_after_all() {
    for clip_norm in [None, Some(0.5)] {
        assert_eq!(several_buckets(true, clip_norm), several_buckets(false, clip_norm));
    }
    assert_ne!(several_buckets(true, None), several_buckets(true, Some(0.5)));
}

#[test]
fn nothing_is_stepped_with_after_a_pass_that_only_accumulated() {
    spawn(TransportKind::Thread, 1, |comm| {
        let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..options(40, 40) };
        let mut engine = DataParallel::new(&comm, parameters(1, 1), Arc::new(GradientAllReduce), options)?;
        engine.set_learning_rate(0.1);
        engine.begin(Mode::Accumulate)?;
        engine.hooks().ready_slice(0, &[1.0f32])?;
        let text = engine.finish_and_step().unwrap_err().to_string();
        assert!(text.contains("no gradients are synchronized"), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn groups_change_while_training_and_the_state_goes_on_elsewhere() {
    spawn(TransportKind::Thread, 2, |comm| {
        let listed = Members::Listed(["p1".to_owned()].into());
        let made = |groups: Vec<ParameterGroup>| {
            let optimizer = Some(Arc::new(Sgd { momentum: 0.5, ..Sgd::default() }) as Arc<_>);
            let options = EngineOptions { optimizer, groups, ..options(40, 40) };
            trained_by(&comm, parameters(2, 10), GradientAllReduce, options, (1.0, 0.0))
        };
        let step = |engine: &mut DataParallel| {
            pass(engine, Mode::Synchronize, &[vec![1.0; 10], vec![1.0; 10]])?;
            engine.step()?;
            Ok::<_, Error>([value(engine, 0)[0], value(engine, 1)[0]])
        };
        let mut engine = made(vec![ParameterGroup::of(listed)])?;
        engine.set_group_factors(&[(0.25, 1.0)])?;
        assert_eq!(step(&mut engine)?, [-1.0, -0.25]);
        engine.set_group_factors(&[(0.0, 1.0)])?;
        assert_eq!(step(&mut engine)?, [-2.5, -0.25]);
        let refused = engine.set_group_factors(&[(-1.0, 1.0)]).unwrap_err().to_string();
        assert!(refused.contains("learning_rate of the parameter group"), "{refused}");
        engine.set_group_factors(&[]).unwrap_err();

        let state = engine.optimizer_state()?;
        assert_eq!((state.steps, state.slots.len()), (2, 2));
        let mut other = made(Vec::new())?;
        other.set_optimizer_state(&state)?;
        assert_eq!(step(&mut other)?, [-1.75; 2], "a momentum of 1.5 goes on");
        other.set_group_factors(&[(0.0, 1.0)])?;
        assert_eq!(step(&mut other)?, [-1.75; 2], "all are one group where none is named");
        let foreign = OptimizerState { slots: Vec::new(), ..state };
        other.set_optimizer_state(&foreign).unwrap_err();
        Ok(())
    })
    .unwrap();
}
