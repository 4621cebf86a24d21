//! The mean of candle models during a training: its evaluation, and that the replicas continue unchanged.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use candle_core::{DType, Device, ModuleT, Result, Tensor};
use candle_nn::{BatchNorm, Linear, Module, Optimizer, SGD, VarBuilder, VarMap, batch_norm, linear};
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::{Buffers, EngineOptions, GradientAllReduce, Sgd};
use hexagram_candle::{Error, Replica, ReplicaOptions};
use std::sync::Arc;

struct Net {
    linear: Linear,
    /// None with weights of 16 bits, for which candle has no normalization.
    norm: Option<BatchNorm>,
}

impl Net {
    fn new(vb: VarBuilder<'static>) -> Result<Self> {
        let norm = (vb.dtype() != DType::BF16).then(|| batch_norm(4, 1e-5, vb.pp("norm")));
        Ok(Net { linear: linear(3, 4, vb.pp("linear"))?, norm: norm.transpose()? })
    }

    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let y = self.linear.forward(x)?;
        self.norm.as_ref().map_or(Ok(y.clone()), |norm| norm.forward_t(&y, train))
    }
}

fn batch(seed: usize, dtype: DType) -> Result<Tensor> {
    let values: Vec<f64> = (0..24).map(|i| ((seed * 997 + i * 31) as f64 * 0.37).cos()).collect();
    Tensor::from_vec(values, (8, 3), &Device::Cpu)?.to_dtype(dtype)
}

fn values(varmap: &VarMap) -> Vec<(String, Vec<f64>)> {
    let data = varmap.data().lock().unwrap();
    let flat = |var: &candle_core::Var| var.flatten_all()?.to_dtype(DType::F64)?.to_vec1();
    let mut all: Vec<_> = data.iter().map(|(name, var)| (name.clone(), flat(var).unwrap())).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// Means of every tensor over the ranks, and the root mean square distance of the parameters of the ranks from them.
fn mean(comm: &Communicator, own: &[(String, Vec<f64>)]) -> (Vec<Vec<f64>>, f64) {
    let mut square = 0.0;
    let of = |(name, own): &(String, Vec<f64>)| {
        let mut all = vec![0.0; own.len() * comm.size()];
        comm.blocking().all_gather(own, &mut all).unwrap();
        let rows: Vec<&[f64]> = all.chunks(own.len()).collect();
        let n = rows.len() as f64;
        let mean: Vec<f64> =
            (0..own.len()).map(|at| rows.iter().map(|row| row[at]).sum::<f64>() / n).collect();
        if !name.contains("running") {
            let apart = rows.iter().flat_map(|row| row.iter().zip(&mean));
            square += apart.map(|(x, mean)| (x - mean).powi(2)).sum::<f64>() / n;
        }
        mean
    };
    let means = own.iter().map(of).collect();
    (means, square.sqrt())
}

/// Trains six steps; evaluates the mean after each if `looks`, and returns the final state.
fn trained(
    comm: &Communicator,
    dtype: DType,
    options: ReplicaOptions,
    looks: bool,
) -> hexagram_candle::Result<Vec<(String, Vec<f64>)>> {
    let own_optimizer = options.engine.optimizer.is_none();
    let varmap = VarMap::new();
    Net::new(VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu))?;
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let values: Vec<f64> =
            (0..var.elem_count()).map(|i| ((i + name.len()) as f64 * 0.7).sin() + 1.1).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?.to_dtype(dtype)?)?;
    }
    let (net, mut replica) = Replica::build(comm, &varmap, ReplicaOptions { dtype, ..options }, Net::new)?;
    replica.set_learning_rate(0.1);
    let mut sgd = SGD::new(varmap.all_vars(), 0.1)?;
    let held_out = batch(1000, dtype)?;
    for step in 0..6 {
        replica.forward()?;
        let loss = net.forward(&batch(step * 7 + comm.rank(), dtype)?, true)?.sqr()?.mean_all()?;
        if own_optimizer {
            replica.backward_step(&mut sgd, &loss)?
        } else {
            replica.step(&loss)?
        };
        if !looks {
            continue;
        }
        let before = values(&varmap);
        let output = |net: &Net| -> Result<Vec<f64>> {
            net.forward(&held_out, false)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
        };
        let own = output(&net)?;
        let (means, distance) = mean(comm, &before);
        let evaluation = replica.evaluate_mean(|| -> hexagram_candle::Result<_> {
            let found = values(&varmap);
            for ((name, found), mean) in found.iter().zip(&means) {
                let far = found.iter().zip(mean).map(|(x, mean)| (x - mean).abs()).fold(0.0, f64::max);
                let tolerance = if dtype == DType::F64 { 1e-14 } else { 0.02 };
                assert!(far <= tolerance, "`{name}` is {far} from the mean");
            }
            Ok(output(&net)?)
        })?;
        let tolerance = if dtype == DType::F64 { 1e-12 } else { 0.02 };
        let found = evaluation.consensus_distance;
        assert!((found - distance).abs() <= tolerance, "{found}, not {distance}");
        assert_eq!(values(&varmap), before);
        assert_eq!(output(&net)?, own, "the model's own tensors are back, too");
        let mut all = vec![0.0; own.len() * comm.size()];
        comm.blocking().all_gather(&evaluation.result, &mut all)?;
        assert!(all.chunks(own.len()).all(|other| other == evaluation.result), "all see one model");
    }
    Ok(values(&varmap))
}

fn options(local: bool, engine: bool) -> ReplicaOptions {
    let momentum = Sgd { momentum: 0.9, ..Sgd::default() };
    let engine = EngineOptions {
        optimizer: if engine { Some(Arc::new(momentum)) } else { None },
        buffers: Buffers::Off,
        ..EngineOptions::default()
    };
    let options = ReplicaOptions { engine, ..ReplicaOptions::default() };
    if local {
        ReplicaOptions { algorithm: LocalSgd { period: 4, ..LocalSgd::default() }.into(), ..options }
    } else {
        ReplicaOptions { algorithm: GradientAllReduce.into(), ..options }
    }
}

#[test]
fn evaluating_the_mean_leaves_every_replica_as_it_was() {
    for (local, engine) in [(true, true), (true, false), (false, true), (false, false)] {
        for dtype in [DType::F64, DType::BF16] {
            let run = |looks: bool| {
                spawn(TransportKind::Thread, 3, |comm| {
                    trained(&comm, dtype, options(local, engine), looks).map_err(|error| match error {
                        Error::Hexagram(error) => *error,
                        other => panic!("{other}"),
                    })
                })
                .unwrap()
            };
            assert!(run(true) == run(false), "{dtype:?}, local {local}, engine {engine}");
        }
    }
}

#[test]
fn an_evaluation_that_fails_leaves_the_replica_too() {
    spawn(TransportKind::Thread, 2, |comm| {
        let varmap = VarMap::new();
        let built = Replica::build(&comm, &varmap, options(true, true), Net::new);
        let (_, mut replica) = built.unwrap_or_else(|error| panic!("{error}"));
        let before = values(&varmap);
        let failed = replica.evaluate_mean(|| Err::<(), _>(Error::from(candle_core::Error::msg("no data"))));
        assert!(failed.unwrap_err().to_string().contains("no data"));
        assert_eq!(values(&varmap), before);
        Ok(())
    })
    .unwrap();
}
