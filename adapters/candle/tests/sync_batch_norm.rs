//! Batch normalization over all ranks equals that of candle over the concatenated batch: values, gradients, statistics.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use candle_core::{DType, Device, ModuleT, Result, Tensor, Var};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear};
use hexagram_algorithms::EngineOptions;
use hexagram_algorithms::logical::TransportKind;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_candle::{Replica, ReplicaOptions, SyncBatchNorm, sync_batch_norm};

const FEATURES: usize = 3;

/// Elements far from zero in one feature, where variances easily lose precision.
fn samples(count: usize, inner: &[usize], phase: f64) -> Tensor {
    let shape: Vec<usize> = [&[count, FEATURES][..], inner].concat();
    let inner: usize = inner.iter().product();
    let value = |at: usize| (at as f64 * 0.83 + phase).sin() + 1000.0 * (at / inner % FEATURES) as f64;
    let values: Vec<f64> = (0..count * FEATURES * inner).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

fn close(found: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    for (found, expected) in numbers(found).iter().zip(numbers(expected)) {
        assert!((found - expected).abs() <= tolerance, "{what}: {found} and not {expected}");
    }
}

/// Parameters and statistics that differ from the initial ones.
fn varmap(dtype: DType) -> VarMap {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
    candle_nn::batch_norm(FEATURES, 1e-5, vb).unwrap();
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let values: Vec<f64> = (0..FEATURES).map(|at| 0.5 + (at + name.len()) as f64 * 0.1).collect();
        var.set(&Tensor::from_vec(values, FEATURES, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()).unwrap();
    }
    varmap
}

/// The results of a layer on its part of a batch: output, and the gradients of Σ output · weights.
fn pass(layer: &impl ModuleT, varmap: &VarMap, x: &Tensor, weights: &Tensor) -> Vec<Tensor> {
    let x = Var::from_tensor(x).unwrap();
    let y = layer.forward_t(&x, true).unwrap();
    let loss = (&y * weights).unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    let data = varmap.data().lock().unwrap();
    let of = |var: &Var| gradients.get(var).unwrap().clone();
    vec![y, of(&x), of(&data["weight"]), of(&data["bias"])]
}

#[test]
fn ranks_with_different_shares_equal_one_batch() {
    for (dtype, tolerance) in [(DType::F64, 1e-8), (DType::F32, 2e-3)] {
        for inner in [&[][..], &[5], &[2, 3]] {
            let x = samples(8, inner, 0.0);
            let weights = samples(8, inner, 0.4).affine(1e-3, 0.0).unwrap();
            // In f32, the normalization of candle loses the variance of the features far from zero.
            let alone = varmap(DType::F64);
            let vb = VarBuilder::from_varmap(&alone, DType::F64, &Device::Cpu);
            let expected = pass(&candle_nn::batch_norm(FEATURES, 1e-5, vb).unwrap(), &alone, &x, &weights);
            let statistics =
                |varmap: &VarMap, name: &str| varmap.data().lock().unwrap()[name].as_detached_tensor();
            spawn(TransportKind::Thread, 3, |comm| {
                let (begin, count) = [(0, 3), (3, 1), (4, 4)][comm.rank()];
                let share = |all: &Tensor| all.narrow(0, begin, count).unwrap();
                let given = |all: &Tensor| share(all).to_dtype(dtype).unwrap();
                let mine = varmap(dtype);
                let vb = VarBuilder::from_varmap(&mine, dtype, &Device::Cpu);
                let layer = sync_batch_norm(&comm, FEATURES, 1e-5, vb).unwrap();
                let found = pass(&layer, &mine, &given(&x), &given(&weights));
                close(&found[0], &share(&expected[0]), tolerance, "values");
                close(&found[1], &share(&expected[1]), tolerance, "gradients of the samples");
                for (at, name) in [(2, "weight"), (3, "bias")] {
                    let mut sum = numbers(&found[at]);
                    comm.blocking().all_reduce(&mut sum, hexagram_algorithms::logical::ReduceOp::Sum)?;
                    let sum = Tensor::new(sum, &Device::Cpu).unwrap();
                    close(&sum, &expected[at], 10.0 * tolerance, name);
                }
                for name in ["running_mean", "running_var"] {
                    close(&statistics(&mine, name), &statistics(&alone, name), tolerance, name);
                }
                let evaluated = layer.forward_t(&given(&x), false).unwrap();
                let vb = VarBuilder::from_varmap(&mine, dtype, &Device::Cpu);
                let plain = candle_nn::batch_norm(FEATURES, 1e-5, vb).unwrap();
                close(&evaluated, &plain.forward_t(&given(&x), false).unwrap(), tolerance, "evaluation");
                Ok(())
            })
            .unwrap();
        }
    }
}

struct Net<N> {
    first: Linear,
    norm: N,
    second: Linear,
}

impl<N: ModuleT> Net<N> {
    fn new(vb: VarBuilder<'_>, norm: impl FnOnce(VarBuilder<'_>) -> Result<N>) -> Result<Self> {
        let first = linear(FEATURES, FEATURES, vb.pp("first"))?;
        Ok(Net { first, norm: norm(vb.pp("norm"))?, second: linear(FEATURES, 2, vb.pp("second"))? })
    }

    fn loss(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward_t(&self.first.forward(x)?, true)?;
        self.second.forward(&x.tanh()?)?.sqr()?.mean_all()
    }
}

fn set(varmap: &VarMap) {
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let value = |at: usize| ((at * 3 + name.len()) as f64 * 0.7).sin();
        let values = (0..var.elem_count()).map(value).collect::<Vec<_>>();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap()).unwrap();
    }
}

#[test]
fn replicas_train_as_one_rank_with_the_larger_batch() {
    let batch = |step: usize| samples(8, &[], step as f64).affine(1e-3, 0.1).unwrap();
    let alone = VarMap::new();
    let vb = VarBuilder::from_varmap(&alone, DType::F64, &Device::Cpu);
    let net = Net::new(vb, |vb| candle_nn::batch_norm(FEATURES, 1e-5, vb)).unwrap();
    set(&alone);
    let mut optimizer = SGD::new(alone.all_vars(), 0.1).unwrap();
    for step in 0..10 {
        optimizer.backward_step(&net.loss(&batch(step)).unwrap()).unwrap();
    }
    for transport in TransportKind::ALL {
        spawn(transport, 4, |comm| {
            let mine = VarMap::new();
            let options = ReplicaOptions {
                dtype: DType::F64,
                engine: EngineOptions {
                    optimizer: Some(std::sync::Arc::new(hexagram_algorithms::Sgd::default())),
                    ..EngineOptions::default()
                },
                ..ReplicaOptions::default()
            };
            let (net, mut replica): (Net<SyncBatchNorm>, _) = Replica::build(&comm, &mine, options, |vb| {
                Net::new(vb, |vb| sync_batch_norm(&comm, FEATURES, 1e-5, vb))
            })
            .unwrap();
            set(&mine);
            replica.refresh().unwrap();
            replica.set_learning_rate(0.1);
            for step in 0..10 {
                let share = batch(step).narrow(0, 2 * comm.rank(), 2).unwrap();
                replica.step(&net.loss(&share).unwrap()).unwrap();
            }
            for (name, var) in alone.data().lock().unwrap().iter() {
                close(&mine.data().lock().unwrap()[name], var, 1e-9, name);
            }
            assert!(replica.is_identical().unwrap());
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn one_sample_in_all_is_refused() {
    let varmap = varmap(DType::F32);
    spawn(TransportKind::Thread, 1, |comm| {
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let layer = sync_batch_norm(&comm, FEATURES, 1e-5, vb).unwrap();
        let x = samples(1, &[], 0.0).to_dtype(DType::F32).unwrap();
        let error = layer.forward_t(&x, true).unwrap_err().to_string();
        assert!(error.contains("no variance"), "{error}");
        let error = layer.forward_t(&x.t().unwrap(), true).unwrap_err().to_string();
        assert!(error.contains("3 features"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_layer_of_no_features_is_refused() {
    let varmap = varmap(DType::F32);
    spawn(TransportKind::Thread, 1, |comm| {
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let error = sync_batch_norm(&comm, 0, 1e-5, vb).err().unwrap().to_string();
        assert!(error.contains("0 features") && error.contains("1 or more"), "{error}");
        Ok(())
    })
    .unwrap();
}
