//! candle models on several ranks: equal to one rank with the larger batch, overlapped, and never out of step silently.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod evaluations;
mod overlap;
mod roles;

use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Module, Result, Shape, Tensor, Var};
use candle_nn::{Linear, Optimizer, SGD, VarBuilder, VarMap, linear};
use hexagram_algorithms::engine::LossScale;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, NOTICE_BYTES, TransportKind};
use hexagram_algorithms::{EngineOptions, Order, Sgd};
use hexagram_candle::{Error, Replica, ReplicaOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};

const IN: usize = 6;

struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Net { first: linear(IN, 32, vb.pp("first"))?, second: linear(32, 1, vb.pp("second"))? })
    }

    fn loss(&self, x: &Tensor) -> Result<Tensor> {
        let target = x.sum_keepdim(1)?.sin()?;
        (self.second.forward(&self.first.forward(x)?.tanh()?)? - target)?.sqr()?.mean_all()
    }
}

/// A VarMap with the parameters of the model, the same in every call.
fn same_start(dtype: DType) -> VarMap {
    let varmap = VarMap::new();
    Net::new(VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu)).unwrap();
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let values =
            (0..var.elem_count()).map(|i| ((i + name.len()) as f64 * 0.7).sin() * 0.4).collect::<Vec<_>>();
        let values = Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap();
        var.set(&values.to_dtype(dtype).unwrap()).unwrap();
    }
    varmap
}

fn batch(step: usize, dtype: DType) -> Tensor {
    let values = (0..12 * IN).map(|i| ((step * 997 + i * 31) as f64 * 0.37).cos()).collect::<Vec<_>>();
    Tensor::from_vec(values, (12, IN), &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn values(varmap: &VarMap) -> Vec<f64> {
    let data = varmap.data().lock().unwrap();
    let mut names: Vec<_> = data.keys().cloned().collect();
    names.sort();
    let flat =
        |name: &String| data[name].flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
    names.iter().flat_map(flat).collect()
}

/// Small buckets, so that there are several.
fn options(dtype: DType) -> ReplicaOptions {
    let engine = EngineOptions {
        first_bucket_bytes: 64,
        bucket_bytes: 256,
        order: Order::Listed,
        ..EngineOptions::default()
    };
    ReplicaOptions { engine, dtype, ..ReplicaOptions::default() }
}

fn hexagram<T>(outcome: hexagram_candle::Result<T>) -> hexagram_algorithms::logical::Result<T> {
    outcome.map_err(|error| match error {
        Error::Hexagram(error) => *error,
        other => panic!("{other}"),
    })
}

/// Trains on this rank's share of each batch.
fn train(comm: &Communicator, dtype: DType, steps: usize) -> hexagram_candle::Result<Vec<f64>> {
    let varmap = same_start(dtype);
    let (model, mut replica) = Replica::build(comm, &varmap, options(dtype), Net::new)?;
    let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
    let share = 12 / comm.size();
    for step in 0..steps {
        let mine = batch(step, dtype).narrow(0, comm.rank() * share, share)?;
        replica.backward_step(&mut optimizer, &model.loss(&mine)?)?;
    }
    assert!(replica.is_identical()?);
    Ok(values(&varmap))
}

/// The same without hexagram, on whole batches.
fn train_alone(dtype: DType, steps: usize) -> Vec<f64> {
    let varmap = same_start(dtype);
    let model = Net::new(VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu)).unwrap();
    let mut optimizer = SGD::new(varmap.all_vars(), 0.1).unwrap();
    for step in 0..steps {
        optimizer.backward_step(&model.loss(&batch(step, dtype)).unwrap()).unwrap();
    }
    values(&varmap)
}

fn largest_difference(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn several_ranks_equal_one_with_the_larger_batch() {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        let alone = train_alone(dtype, 50);
        for transport in TransportKind::ALL {
            for ranks in [1, 2, 3, 4] {
                let together = spawn(transport, ranks, |comm| hexagram(train(&comm, dtype, 50))).unwrap();
                for parameters in &together {
                    assert_eq!(parameters, &together[0], "replicas are bit-identical");
                }
                let difference = largest_difference(&together[0], &alone);
                assert!(difference < tolerance, "{transport} × {ranks}, {dtype:?}: {difference:e}");
            }
        }
    }
}

/// Optimizer that makes the steps.
#[derive(Clone, Copy, PartialEq)]
enum Stepping {
    Engine,
    Candle,
}

/// Some steps of local SGD on this rank's share; the last one makes all replicas equal.
fn train_locally(comm: &Communicator, stepping: Stepping, period: u64) -> hexagram_candle::Result<Vec<f64>> {
    let varmap = same_start(DType::F64);
    let mut options = ReplicaOptions {
        algorithm: LocalSgd { period, ..LocalSgd::default() }.into(),
        ..options(DType::F64)
    };
    if stepping == Stepping::Engine {
        options.engine.optimizer = Some(Arc::new(Sgd::default()));
    }
    let (model, mut replica) = Replica::build(comm, &varmap, options, Net::new)?;
    let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
    replica.set_learning_rate(0.1);
    let share = 12 / comm.size();
    for step in 0..12 {
        let mine = batch(step, DType::F64).narrow(0, comm.rank() * share, share)?;
        replica.forward()?;
        let loss = model.loss(&mine)?;
        match stepping {
            Stepping::Engine => replica.step(&loss)?,
            Stepping::Candle => replica.backward_step(&mut optimizer, &loss)?,
        }
        assert_eq!(replica.is_identical()?, (step as u64 + 1).is_multiple_of(period));
    }
    Ok(values(&varmap))
}

#[test]
fn algorithms_on_parameters_work_with_either_optimizer() {
    let synchronous = train_alone(DType::F64, 12);
    for (period, tolerance) in [(1, 1e-12), (4, 1.0)] {
        for ranks in [2, 3] {
            let run = |stepping| {
                spawn(TransportKind::Shm, ranks, |comm| hexagram(train_locally(&comm, stepping, period)))
                    .unwrap()
            };
            let engine = run(Stepping::Engine);
            let candle = run(Stepping::Candle);
            assert!(largest_difference(&engine[0], &candle[0]) < 1e-14, "{ranks} ranks, H = {period}");
            let difference = largest_difference(&engine[0], &synchronous);
            assert!(difference < tolerance, "{ranks} ranks, H = {period}: {difference:e}");
            // Otherwise no step was local.
            assert!(period == 1 || difference > 1e-6, "{ranks} ranks, H = {period}: {difference:e}");
        }
    }
}

#[test]
fn a_switch_keeps_parameters_and_goes_on() {
    spawn(TransportKind::Thread, 2, |comm| {
        let varmap = same_start(DType::F64);
        let mut options = options(DType::F64);
        options.engine.optimizer = Some(Arc::new(Sgd::default()));
        let (model, mut replica) = hexagram(Replica::build(&comm, &varmap, options, Net::new))?;
        replica.set_learning_rate(0.1);
        for step in 0..6 {
            let mine = batch(step, DType::F64).narrow(0, comm.rank() * 6, 6).unwrap();
            hexagram(replica.step(&model.loss(&mine).unwrap()))?;
            if step == 2 {
                hexagram(replica.switch(Arc::new(LocalSgd { period: 1, ..LocalSgd::default() })))?;
            }
        }
        let difference = largest_difference(&values(&varmap), &train_alone(DType::F64, 6));
        assert!(difference < 1e-12, "{difference:e}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn half_precision_trains() {
    for dtype in [DType::F16, DType::BF16] {
        let finals = spawn(TransportKind::Thread, 2, |comm| hexagram(train(&comm, dtype, 5))).unwrap();
        assert_eq!(finals[0], finals[1]);
        assert!(largest_difference(&finals[0], &train_alone(dtype, 5)) < 0.05, "{dtype:?}");
    }
}

#[test]
fn everyone_starts_from_rank_0() {
    spawn(TransportKind::Shm, 3, |comm| {
        let varmap = VarMap::new();
        let build = |vb: VarBuilder<'static>| {
            let bn = candle_nn::batch_norm(4, 1e-5, vb.pp("bn"))?;
            Ok((Net::new(vb)?, bn))
        };
        let (_, replica) = hexagram(Replica::build(&comm, &varmap, ReplicaOptions::default(), build))?;
        // candle cannot seed its CPU generator, so without a broadcast ranks differ.
        assert!(hexagram(replica.is_identical())?);
        Ok(())
    })
    .unwrap();
}

/// Identity whose backward waits until bytes were sent.
struct Until {
    comm_bytes: Box<dyn Fn() -> u64 + Send + Sync>,
    at_least: u64,
}

impl CustomOp1 for Until {
    fn name(&self) -> &'static str {
        "until"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let started = Instant::now();
        while (self.comm_bytes)() < self.at_least {
            assert!(started.elapsed() < Duration::from_secs(30), "nothing was sent during the backward pass");
            std::thread::yield_now();
        }
        Ok(Some(gradient.clone()))
    }
}

#[test]
fn communication_overlaps_with_candles_backward() {
    spawn(TransportKind::Shm, 2, |comm| {
        let varmap = same_start(DType::F32);
        let (model, mut replica) = hexagram(Replica::build(&comm, &varmap, options(DType::F32), Net::new))?;
        let world = comm.world().clone();
        let before = world.traffic().bytes_sent();
        // Between the layers: the second layer's bucket (its bias, first in reverse order) leaves before the first
        // layer's gradients exist.
        let bucket = 4 + NOTICE_BYTES as u64;
        let comm_bytes = Box::new(move || world.traffic().bytes_sent());
        let until = Until { comm_bytes, at_least: before + bucket };
        let x = batch(0, DType::F32);
        let hidden = model.first.forward(&x).unwrap().tanh().unwrap();
        let hidden = hidden.apply_op1(until).unwrap();
        let loss = model.second.forward(&hidden).unwrap().sqr().unwrap().mean_all().unwrap();
        hexagram(replica.backward(&loss)).map(drop)
    })
    .unwrap();
}

#[test]
fn accumulated_gradients_are_those_of_the_sum() {
    spawn(TransportKind::Tcp, 2, |comm| {
        let run = |accumulate: bool| {
            let varmap = same_start(DType::F64);
            let (model, mut replica) = Replica::build(&comm, &varmap, options(DType::F64), Net::new)?;
            let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
            for step in 0..4 {
                let halves =
                    [batch(step, DType::F64).narrow(0, 0, 6)?, batch(step, DType::F64).narrow(0, 6, 6)?];
                let losses = [model.loss(&halves[0])?, model.loss(&halves[1])?];
                if accumulate {
                    let before = comm.world().traffic().bytes_sent();
                    replica.backward_no_sync(&losses[0])?;
                    assert_eq!(comm.world().traffic().bytes_sent(), before);
                    replica.backward_step(&mut optimizer, &losses[1])?;
                } else {
                    replica.backward_step(&mut optimizer, &(&losses[0] + &losses[1])?)?;
                }
            }
            Ok(values(&varmap))
        };
        let difference = largest_difference(&hexagram(run(true))?, &hexagram(run(false))?);
        assert!(difference < 1e-12, "{difference:e}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn tied_weights_have_one_gradient() {
    spawn(TransportKind::Thread, 2, |comm| {
        let varmap = VarMap::new();
        let build = |vb: VarBuilder<'static>| {
            let one = vb.get_with_hints((3, 3), "tied", candle_nn::Init::Const(0.5))?;
            Ok((one, vb.get((3, 3), "tied")?))
        };
        let ((one, two), mut replica) =
            hexagram(Replica::build(&comm, &varmap, ReplicaOptions::default(), build))?;
        let loss = one.matmul(&two).unwrap().sum_all().unwrap();
        let var = varmap.all_vars().remove(0);
        let mut synchronized = hexagram(replica.backward(&loss))?;
        let gradient = synchronized.gradients().get(&var).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(gradient, vec![vec![3.0; 3]; 3], "1.5 through each use");
        Ok(())
    })
    .unwrap();
}

/// Every rank fails, with this text.
fn all_fail(what: &str, body: impl Fn(&Communicator) -> hexagram_candle::Result<()> + Sync) {
    let errors =
        spawn(TransportKind::Shm, 2, |comm| Ok(body(&comm).map_err(|error| error.to_string()))).unwrap();
    for error in errors {
        let text = error.unwrap_err();
        assert!(text.contains(what), "{text}");
    }
}

#[test]
fn an_overflow_of_a_scaled_loss_leaves_nothing_to_step_with() {
    let trained = |overflow: Option<f64>| {
        spawn(TransportKind::Thread, 2, |comm| {
            let varmap = same_start(DType::F32);
            let engine = EngineOptions {
                loss_scale: Some(LossScale { initial: 4.0, ..LossScale::default() }),
                ..EngineOptions::default()
            };
            let options = ReplicaOptions { engine, ..ReplicaOptions::default() };
            let (net, mut replica) = Replica::build(&comm, &varmap, options, Net::new).unwrap();
            let mut optimizer = candle_nn::AdamW::new_lr(varmap.all_vars(), 0.1).unwrap();
            for step in 0..3 {
                let scale = replica.engine().loss_scaling().scale();
                let scale = match (step, overflow) {
                    (1, None) => continue,
                    (1, Some(factor)) if comm.rank() == 1 => factor,
                    _ => scale,
                };
                let loss = (net.loss(&batch(step, DType::F32)).unwrap() * scale).unwrap();
                replica.backward_step(&mut optimizer, &loss).unwrap();
            }
            Ok((values(&varmap), replica.engine().steps()))
        })
        .unwrap()
    };
    assert_eq!(trained(Some(f64::INFINITY)), trained(None));
}

#[test]
fn a_parameter_used_past_its_tap_is_named() {
    all_fail("`first.weight` was used past its builder", |comm| {
        let varmap = VarMap::new();
        let (model, mut replica) = Replica::build(comm, &varmap, ReplicaOptions::default(), Net::new)?;
        let past: Var = varmap.data().lock().unwrap()["first.weight"].clone();
        let loss = (model.loss(&batch(0, DType::F32))? + past.sum_all()?)?;
        replica.backward(&loss).map(drop)
    });
}

#[test]
fn the_optimizers_own_backward_step_says_what_to_call() {
    spawn(TransportKind::Thread, 1, |comm| {
        let varmap = VarMap::new();
        let (model, _replica) =
            hexagram(Replica::build(&comm, &varmap, ReplicaOptions::default(), Net::new))?;
        let mut optimizer = SGD::new(varmap.all_vars(), 0.1).unwrap();
        let error = optimizer.backward_step(&model.loss(&batch(0, DType::F32)).unwrap()).unwrap_err();
        assert!(error.to_string().contains("replica.backward_step"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_change_of_one_element_behind_the_replicas_back_is_refused() {
    all_fail("`first.weight` was changed without its replica", |comm| {
        let varmap = VarMap::new();
        let (model, mut replica) = Replica::build(comm, &varmap, ReplicaOptions::default(), Net::new)?;
        let var = varmap.data().lock().unwrap()["first.weight"].clone();
        let mut values = var.flatten_all()?.to_vec1::<f32>()?;
        values[3] += 1.0;
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
        replica.backward(&model.loss(&batch(0, DType::F32))?).map(drop)
    });
}

#[test]
fn a_lasting_change_of_one_element_of_a_large_tensor_is_found_some_steps_later() {
    all_fail("`large` was changed without its replica", |comm| {
        let varmap = VarMap::new();
        let build =
            |vb: VarBuilder<'static>| vb.get_with_hints((64, 64), "large", candle_nn::Init::Const(0.5));
        let (large, mut replica) = Replica::build(comm, &varmap, ReplicaOptions::default(), build)?;
        // 4096 elements, of which every 128th is compared, with a different start each time.
        let var = varmap.data().lock().unwrap()["large"].clone();
        let mut values = var.flatten_all()?.to_vec1::<f32>()?;
        values[3000] += 1.0;
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
        // No optimizer steps, so the change is not overwritten.
        (0..128).try_for_each(|_| replica.backward(&large.sqr()?.mean_all()?).map(drop))
    });
}

#[test]
fn a_step_behind_the_replicas_back_is_refused() {
    all_fail("was changed without its replica", |comm| {
        let varmap = VarMap::new();
        let (model, mut replica) = Replica::build(comm, &varmap, ReplicaOptions::default(), Net::new)?;
        let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
        let mut synchronized = replica.backward(&model.loss(&batch(0, DType::F32))?)?;
        optimizer.step(synchronized.gradients())?;
        drop(synchronized);
        replica.backward(&model.loss(&batch(1, DType::F32))?).map(drop)
    });
}

#[test]
fn different_models_are_refused_before_the_first_step() {
    all_fail("ranks train different models", |comm| {
        let build = |vb: VarBuilder<'static>| linear(IN, 3 + comm.rank(), vb);
        Replica::build(comm, &VarMap::new(), ReplicaOptions::default(), build).map(drop)
    });
}

#[test]
fn a_failing_backward_ends_the_other_ranks_too() {
    all_fail("backward is not supported for", |comm| {
        let (model, mut replica) = Replica::build(comm, &VarMap::new(), ReplicaOptions::default(), Net::new)?;
        let mut loss = model.loss(&batch(0, DType::F32))?;
        if comm.rank() == 0 {
            loss = loss.apply_op1(NoBackward)?;
        }
        replica.backward(&loss).map(drop)
    });
}

struct NoBackward;

impl CustomOp1 for NoBackward {
    fn name(&self) -> &'static str {
        "no-backward"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }
}

#[test]
fn averaging_makes_different_replicas_one() {
    spawn(TransportKind::Thread, 4, |comm| {
        let varmap = VarMap::new();
        let (_, mut replica) = hexagram(Replica::build(&comm, &varmap, ReplicaOptions::default(), Net::new))?;
        for var in varmap.all_vars() {
            var.set(&Tensor::full(comm.rank() as f32, var.shape(), &Device::Cpu).unwrap()).unwrap();
        }
        assert!(!hexagram(replica.is_identical())?);
        hexagram(replica.average())?;
        assert!(hexagram(replica.is_identical())?);
        assert!(values(&varmap).iter().all(|x| *x == 1.5));
        Ok(())
    })
    .unwrap();
}
