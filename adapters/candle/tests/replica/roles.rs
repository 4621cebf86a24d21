//! The roles of the tensors of a model: trained together, a buffer, local to each rank, or unused.

use super::{Net, all_fail, batch, hexagram, same_start};
use candle_core::{DType, Device, Module, ModuleT, Result, Tensor, Var};
use candle_nn::{BatchNorm, Init, Linear, Optimizer, SGD, VarBuilder, VarMap};
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::{EngineOptions, Sgd, Unused};
use hexagram_candle::{Replica, ReplicaOptions};
use std::sync::Arc;

#[test]
fn running_statistics_belong_to_the_varmap_and_need_no_gradient() {
    let means = spawn(TransportKind::Thread, 2, |comm| {
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
        // Each rank has had other samples, and still trains the same parameters.
        assert!(hexagram(replica.is_identical())?);
        Ok(mean)
    });
    let means = means.unwrap();
    assert_eq!(means[0], means[1], "a step without `forward` makes them alike");
}

/// A layer with a scale, a count of batches that its forward pass writes, and a bias.
struct Counting {
    scale: Tensor,
    batches: Var,
    bias: Tensor,
}

impl Counting {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        let get = |name: &str| vb.get_with_hints(1, name, Init::Const(1.0));
        Ok(Counting {
            scale: get("scale")?,
            batches: Var::from_tensor(&get("batches")?)?,
            bias: get("bias")?,
        })
    }

    fn loss(&self, x: f32) -> Result<Tensor> {
        let x = Tensor::new(&[x], &Device::Cpu)?;
        self.batches.set(&(self.batches.as_tensor() + &x)?)?;
        (x.mul(&self.scale)? + &self.bias)?.sqr()?.sum_all()
    }
}

/// Trains a counting layer for two steps, and returns scale, count and bias of each rank.
fn counted(options: &ReplicaOptions, own_optimizer: bool) -> Vec<[f32; 3]> {
    let trained = spawn(TransportKind::Thread, 2, |comm| {
        let varmap = VarMap::new();
        let (model, mut replica) =
            hexagram(Replica::build(&comm, &varmap, options.clone(), |vb| Counting::new(vb.pp("layer"))))?;
        replica.set_learning_rate(0.125);
        let mut sgd = SGD::new(varmap.all_vars(), 0.125).unwrap();
        for _ in 0..2 {
            let loss = model.loss(1.0 + comm.rank() as f32).unwrap();
            hexagram(if own_optimizer {
                replica.step(&loss)
            } else {
                replica.backward_step(&mut sgd, &loss)
            })?;
        }
        assert!(hexagram(replica.is_identical())?);
        let all = varmap.data().lock().unwrap();
        Ok(["scale", "batches", "bias"]
            .map(|name| all[&format!("layer.{name}")].to_vec1::<f32>().unwrap()[0]))
    });
    trained.unwrap()
}

#[test]
fn named_buffers_are_alike_and_ignored_tensors_each_ranks_own() {
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let options = ReplicaOptions {
        buffers: named(&["batches"]),
        ignored: named(&["layer.bias"]),
        ..ReplicaOptions::default()
    };
    let [first, second] = counted(&options, false)[..] else { panic!("there are two ranks") };
    assert_eq!(first[0], second[0], "the scale is trained together");
    assert_eq!([first[1], second[1]], [3.0; 2], "the count is that of rank 0");
    assert!(first[2] != second[2] && first[2] < 1.0, "each rank steps its own bias: {first:?}, {second:?}");

    let engine = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..EngineOptions::default() };
    for [scale, batches, bias] in counted(&ReplicaOptions { engine, ..options }, true) {
        assert!(scale < 1.0 && batches == 3.0 && bias == 1.0, "{scale}, {batches}, {bias}");
    }
}

#[test]
fn a_name_that_the_model_does_not_have_is_refused() {
    all_fail("no tensor of the model is named `baises`", |comm: &Communicator| {
        let options = ReplicaOptions { ignored: vec!["baises".to_owned()], ..ReplicaOptions::default() };
        Replica::build(comm, &VarMap::new(), options, Net::new).map(drop)
    });
}

#[test]
fn each_group_of_ranks_trains_a_replica_of_its_own() {
    let trained = spawn(TransportKind::Shm, 4, |comm| {
        let color = comm.rank() as u32 / 2;
        let Some(group) = comm.block_on(comm.split(Some(color), 0))? else {
            panic!("every rank has a color")
        };
        let varmap = same_start(DType::F32);
        let (model, mut replica) =
            hexagram(Replica::build(&group, &varmap, ReplicaOptions::default(), Net::new))?;
        let mut sgd = SGD::new(varmap.all_vars(), 0.1).unwrap();
        let loss = model.loss(&batch(comm.rank(), DType::F32)).unwrap();
        hexagram(replica.backward_step(&mut sgd, &loss))?;
        assert!(hexagram(replica.is_identical())?);
        Ok(super::values(&varmap))
    });
    let trained = trained.unwrap();
    assert!(trained[0] == trained[1] && trained[2] == trained[3] && trained[0] != trained[2]);
}

#[test]
fn a_layer_that_no_rank_uses_is_left_as_it_is() {
    for own in [false, true] {
        let moved = spawn(TransportKind::Thread, 2, |comm| {
            let varmap = same_start(DType::F32);
            let optimizer = own.then(|| Arc::new(hexagram_algorithms::AdamW::default()) as Arc<_>);
            let engine = EngineOptions { unused: Unused::Zero, optimizer, ..EngineOptions::default() };
            let options = ReplicaOptions { engine, ..ReplicaOptions::default() };
            let (net, mut replica) = Replica::build(&comm, &varmap, options, Net::new).unwrap();
            replica.set_learning_rate(0.1);
            let mut adam = candle_nn::AdamW::new_lr(varmap.all_vars(), 0.1).unwrap();
            let read = |layer: &Linear| layer.weight().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let mut moved = Vec::new();
            for step in 0..3 {
                let before = (read(&net.first), read(&net.second));
                let x = net.first.forward(&batch(step, DType::F32)).unwrap();
                // In the first step all ranks use both layers, then one does, then none.
                let uses = step == 0 || step == 1 && comm.rank() == 0;
                let loss =
                    if uses { net.second.forward(&x).unwrap() } else { x }.sqr().unwrap().mean_all().unwrap();
                if own { replica.step(&loss) } else { replica.backward_step(&mut adam, &loss) }.unwrap();
                moved.push((read(&net.first) != before.0, read(&net.second) != before.1));
            }
            Ok(moved)
        });
        for moved in moved.unwrap() {
            assert_eq!(moved, [(true, true), (true, true), (true, false)], "the engine's optimizer: {own}");
        }
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
fn a_trainable_running_mean_is_refused() {
    all_fail("`x.running_mean` got a gradient", |comm| {
        let varmap = VarMap::new();
        let build =
            |vb: VarBuilder<'static>| vb.get_with_hints(2, "x.running_mean", candle_nn::Init::Const(1.0));
        let (x, mut replica) = Replica::build(comm, &varmap, ReplicaOptions::default(), build)?;
        replica.backward(&x.sum_all()?).map(drop)
    });
}
