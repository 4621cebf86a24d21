//! Checkpoints of a candle model: continuation bit for bit, and optimizers whose state cannot be saved.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{AdamW, Linear, Optimizer, ParamsAdamW, SGD, VarBuilder, VarMap, linear};
use hexagram_algorithms::demo::DeMo;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::testing::Scratch;
use hexagram_algorithms::{Checkpoints, Record};
use hexagram_candle::{Error, Replica, ReplicaOptions};

fn net(vb: VarBuilder<'static>) -> Result<Linear> {
    linear(6, 3, vb)
}

/// The replica on this rank of a model with the same initial values in every test.
fn replica(
    comm: &Communicator,
    options: ReplicaOptions,
) -> hexagram_candle::Result<(VarMap, Linear, Replica)> {
    let varmap = VarMap::new();
    net(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let values: Vec<f32> = (0..var.elem_count()).map(|i| ((i + name.len()) as f32 * 0.7).sin()).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
    }
    let (model, replica) = Replica::build(comm, &varmap, options, net)?;
    Ok((varmap, model, replica))
}

/// Loss for the batch of a rank in step `step`.
fn loss(comm: &Communicator, model: &Linear, step: usize) -> Result<Tensor> {
    let of = |i: usize| ((step * 997 + comm.rank() * 101 + i * 31) as f32 * 0.37).cos();
    let x = Tensor::from_vec((0..24).map(of).collect::<Vec<_>>(), (4, 6), &Device::Cpu)?;
    model.forward(&x)?.sin()?.sqr()?.mean_all()
}

fn values(varmap: &VarMap) -> Vec<f32> {
    let data = varmap.data().lock().unwrap();
    let mut names: Vec<_> = data.keys().collect();
    names.sort();
    names.iter().flat_map(|name| data[*name].flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect()
}

fn adam_w(varmap: &VarMap) -> AdamW {
    AdamW::new(varmap.all_vars(), ParamsAdamW { lr: 0.1, ..ParamsAdamW::default() }).unwrap()
}

fn hexagram<T>(outcome: hexagram_candle::Result<T>) -> hexagram_algorithms::logical::Result<T> {
    outcome.map_err(|error| match error {
        Error::Hexagram(error) => *error,
        other => panic!("{other}"),
    })
}

/// Trains 20 steps in one run, and in two halves with a checkpoint between; returns the parameters of both.
fn in_one_go_and_in_halves<O: Optimizer + 'static>(
    comm: &Communicator,
    checkpoints: &Checkpoints,
    optimizer: fn(&VarMap) -> O,
) -> hexagram_candle::Result<(Vec<f32>, Vec<f32>)> {
    let (whole, model, mut trained) = replica(comm, ReplicaOptions::default())?;
    let mut steps = optimizer(&whole);
    for step in 0..20 {
        trained.backward_step(&mut steps, &loss(comm, &model, step)?)?;
        if step == 9 {
            trained.save(checkpoints, Record::default())?;
        }
    }
    let (resumed, model, mut trained) = replica(comm, ReplicaOptions::default())?;
    trained.load(checkpoints)?.unwrap();
    let mut steps = optimizer(&resumed);
    for step in 10..20 {
        trained.backward_step(&mut steps, &loss(comm, &model, step)?)?;
    }
    Ok((values(&whole), values(&resumed)))
}

#[test]
fn candles_sgd_goes_on_bit_for_bit() {
    let scratch = Scratch::new();
    spawn(TransportKind::Thread, 2, |comm| {
        let sgd = |varmap: &VarMap| SGD::new(varmap.all_vars(), 0.1).unwrap();
        let run = in_one_go_and_in_halves(&comm, &Checkpoints::new(scratch.path()), sgd);
        let (whole, resumed) = hexagram(run)?;
        assert_eq!(whole, resumed);
        Ok(())
    })
    .unwrap();
}

#[test]
fn candles_adamw_is_refused_since_its_moments_are_not_reached() {
    let scratch = Scratch::new();
    spawn(TransportKind::Thread, 2, |comm| {
        let run = in_one_go_and_in_halves(&comm, &Checkpoints::new(scratch.path()), adam_w);
        let error = hexagram(run).unwrap_err().to_string();
        assert!(error.contains("AdamW") && error.contains("EngineOptions::optimizer"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_optimizer_that_does_not_fit_the_algorithm_is_refused_before_its_first_step() {
    spawn(TransportKind::Thread, 2, |comm| {
        let options = ReplicaOptions { algorithm: DeMo::default().into(), ..ReplicaOptions::default() };
        let (varmap, model, mut replica) = hexagram(replica(&comm, options))?;
        let before = values(&varmap);
        let mut sgd = SGD::new(varmap.all_vars(), 0.0).unwrap();
        hexagram(replica.backward_step(&mut sgd, &loss(&comm, &model, 0).unwrap()))?;
        let refused = replica.backward_step(&mut adam_w(&varmap), &loss(&comm, &model, 1).unwrap());
        let error = hexagram(refused).unwrap_err().to_string();
        assert!(error.contains("AdamW does not fit demo"), "{error}");
        assert_eq!(values(&varmap), before);
        Ok(())
    })
    .unwrap();
}
