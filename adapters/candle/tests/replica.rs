//! candle models on several ranks: equal to one rank with the larger batch, overlapped, and never silently out of step.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use candle_core::{
    CpuStorage, CustomOp1, DType, Device, Layout, Module, ModuleT, Result, Shape, Tensor, Var,
};
use candle_nn::{BatchNorm, Linear, Optimizer, SGD, VarBuilder, VarMap, linear};
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::Buffer;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, NOTICE_BYTES, TransportKind};
use hexagram_algorithms::{
    Algorithm, Bucket, Buckets, Combine, Context, EngineOptions, Needs, Order, Sgd, Trigram,
};
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

/// A VarMap with the model's parameters, the same whenever it is called.
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
        Error::Hexagram(error) => error,
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

/// Which optimizer steps.
#[derive(Clone, Copy, PartialEq)]
enum Stepping {
    Engine,
    Candle,
}

/// Some steps of local SGD on this rank's share; with the last one all replicas become one.
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
            // Otherwise nothing was local.
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

#[test]
fn running_statistics_belong_to_the_varmap_and_need_no_gradient() {
    spawn(TransportKind::Thread, 2, |comm| {
        let varmap = VarMap::new();
        let build = |vb: VarBuilder<'static>| candle_nn::batch_norm(2, 1e-5, vb);
        let (bn, mut replica): (BatchNorm, _) =
            hexagram(Replica::build(&comm, &varmap, ReplicaOptions::default(), build))?;
        let own = comm.rank() as f32;
        let x = Tensor::new(&[[1f32 + own, 2.0], [5.0, 4.0 - own]], &Device::Cpu).unwrap();
        let loss = bn.forward_t(&x, true).unwrap().sqr().unwrap().mean_all().unwrap();
        let mut optimizer = SGD::new(varmap.all_vars(), 0.1).unwrap();
        hexagram(replica.backward_step(&mut optimizer, &loss))?;
        let mean = varmap.data().lock().unwrap()["running_mean"].to_vec1::<f32>().unwrap();
        assert!(mean.iter().all(|x| *x > 0.0), "the forward pass writes what a checkpoint saves: {mean:?}");
        // Each rank has seen other samples, and yet trains the same parameters.
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
fn an_unused_parameter_is_named_on_every_rank() {
    all_fail("`extra`", |comm| {
        let varmap = VarMap::new();
        let build = |vb: VarBuilder<'static>| {
            let extra = vb.get_with_hints(5, "extra", candle_nn::Init::Const(1.0))?;
            Ok((Net::new(vb)?, extra))
        };
        let ((model, extra), mut replica) = Replica::build(comm, &varmap, ReplicaOptions::default(), build)?;
        let mut loss = model.loss(&batch(0, DType::F32))?;
        if comm.rank() == 1 {
            loss = (loss + extra.sum_all()?)?;
        }
        replica.backward(&loss).map(drop)
    });
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
fn a_trainable_running_mean_is_refused() {
    all_fail("`x.running_mean` got a gradient", |comm| {
        let varmap = VarMap::new();
        let build =
            |vb: VarBuilder<'static>| vb.get_with_hints(2, "x.running_mean", candle_nn::Init::Const(1.0));
        let (x, mut replica) = Replica::build(comm, &varmap, ReplicaOptions::default(), build)?;
        replica.backward(&x.sum_all()?).map(drop)
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
        // 4096 elements, of which every 128th is looked at, from another one on each time.
        let var = varmap.data().lock().unwrap()["large"].clone();
        let mut values = var.flatten_all()?.to_vec1::<f32>()?;
        values[3000] += 1.0;
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
        // No optimizer steps, so that nothing makes up for the change.
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

/// Steps with the gradient where the loss is steepest, and gives out the loss.
#[derive(Debug, Clone)]
struct Sam;

impl Algorithm for Sam {
    type State = Buffer;

    fn name(&self) -> &'static str {
        "sam"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: true }
    }

    fn needs(&self) -> Needs {
        Needs { buckets: Buckets::Whole, parameters: true }
    }

    fn evaluations(&self, _: u64) -> u32 {
        2
    }

    async fn state(
        &self,
        context: &Context,
        bucket: &Bucket,
    ) -> hexagram_algorithms::logical::Result<Buffer> {
        context.copy_of(&bucket.parameters)
    }

    async fn evaluated(
        &self,
        context: &Context,
        x: &mut Buffer,
        bucket: &mut Bucket,
    ) -> hexagram_algorithms::logical::Result<()> {
        context.mean(&mut bucket.gradients).await?;
        context.copy(&bucket.parameters, x)?;
        context.add_scaled(0.1 / context.norm(&bucket.gradients)?, &bucket.gradients, &bucket.parameters)
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        x: &mut Buffer,
        bucket: &mut Bucket,
    ) -> hexagram_algorithms::logical::Result<()> {
        context.metric("loss", Combine::Max, context.loss()?)?;
        context.copy(x, &bucket.parameters)?;
        context.mean(&mut bucket.gradients).await
    }
}

/// The same without hexagram: a step of SAM with whole batches.
fn sam_alone(steps: usize) -> Vec<f64> {
    let varmap = same_start(DType::F64);
    let model = Net::new(VarBuilder::from_varmap(&varmap, DType::F64, &Device::Cpu)).unwrap();
    let vars = varmap.all_vars();
    for step in 0..steps {
        let x = batch(step, DType::F64);
        let gradients = model.loss(&x).unwrap().backward().unwrap();
        let gradients: Vec<Tensor> = vars.iter().map(|var| gradients.get(var).unwrap().clone()).collect();
        let square = |g: &Tensor| g.sqr().unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
        let norm = gradients.iter().map(square).sum::<f64>().sqrt();
        let kept: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().copy().unwrap()).collect();
        for (var, g) in vars.iter().zip(&gradients) {
            var.set(&(var.as_tensor() + (g * (0.1 / norm)).unwrap()).unwrap()).unwrap();
        }
        let there = model.loss(&x).unwrap().backward().unwrap();
        for (var, kept) in vars.iter().zip(&kept) {
            var.set(&(kept - (there.get(var).unwrap() * 0.1).unwrap()).unwrap()).unwrap();
        }
    }
    values(&varmap)
}

fn with_sam() -> ReplicaOptions {
    let mut options = options(DType::F64);
    options.algorithm = Sam.into();
    options.engine.optimizer = Some(Arc::new(Sgd::default()));
    options.engine.learning_rate = Some(0.1.into());
    options
}

#[test]
fn a_second_gradient_of_the_batch_is_taken_where_the_algorithm_moved_the_model() {
    let found = spawn(TransportKind::Thread, 2, |comm| {
        let train = || {
            let varmap = same_start(DType::F64);
            let (model, mut replica) = Replica::build(&comm, &varmap, with_sam(), Net::new)?;
            for step in 0..5 {
                let mine = batch(step, DType::F64).narrow(0, comm.rank() * 6, 6)?;
                let before = values(&varmap);
                let loss = replica.step_with(|| Ok::<_, Error>(model.loss(&mine)?))?;
                let told = replica.engine().metrics()["loss"];
                assert_eq!(
                    told,
                    loss.to_scalar::<f64>()?,
                    "the loss is that of the model, and not where it was moved"
                );
                assert_ne!(before, values(&varmap));
            }
            Ok(values(&varmap))
        };
        hexagram(train())
    });
    for found in found.unwrap() {
        assert!(largest_difference(&found, &sam_alone(5)) < 1e-12);
    }
}

#[test]
fn a_step_that_leaves_out_the_second_gradient_is_refused() {
    let errors = spawn(TransportKind::Thread, 2, |comm| {
        let step = || {
            let varmap = same_start(DType::F64);
            let (model, mut replica) = Replica::build(&comm, &varmap, with_sam(), Net::new)?;
            let loss = model.loss(&batch(0, DType::F64))?;
            replica.step(&loss)
        };
        Ok(step().unwrap_err().to_string())
    });
    assert!(errors.unwrap().iter().all(|error| error.contains("sam takes 2 gradients of each batch")));
}

#[test]
fn the_loss_of_a_step_is_the_sum_of_its_passes() {
    let told = spawn(TransportKind::Thread, 1, |comm| {
        let train = || {
            let varmap = same_start(DType::F64);
            let mut options = with_sam();
            options.algorithm = TellsLoss.into();
            let (model, mut replica) = Replica::build(&comm, &varmap, options, Net::new)?;
            let half = |at: usize| model.loss(&batch(0, DType::F64).narrow(0, 6 * at, 6)?);
            let first = half(0)?;
            let second = half(1)?;
            replica.backward_no_sync(&first)?;
            replica.step(&second)?;
            let both = first.to_scalar::<f64>()? + second.to_scalar::<f64>()?;
            let told = replica.engine().metrics()["loss"];
            let third = half(0)?;
            replica.step(&third)?;
            Ok(((told - both).abs() < 1e-15, replica.engine().metrics()["loss"] == third.to_scalar::<f64>()?))
        };
        hexagram(train())
    });
    assert_eq!(told.unwrap(), [(true, true)]);
}

/// Gives out the loss.
#[derive(Debug, Clone)]
struct TellsLoss;

impl Algorithm for TellsLoss {
    type State = ();

    fn name(&self) -> &'static str {
        "tells-loss"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: true }
    }

    async fn state(&self, _: &Context, _: &Bucket) -> hexagram_algorithms::logical::Result<()> {
        Ok(())
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        _: &mut (),
        _: &mut Bucket,
    ) -> hexagram_algorithms::logical::Result<()> {
        context.metric("loss", Combine::Max, context.loss()?)
    }
}
