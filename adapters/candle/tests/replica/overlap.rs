//! Communication during the next forward pass of a candle model: bit for bit the same training as without, and the
//! error for a missing wait names the module.

use super::*;
use hexagram_algorithms::{AnyAlgorithm, Overlap, registry};

const STEPS: usize = 6;

fn under(algorithm: &AnyAlgorithm, overlap: Overlap, dtype: DType) -> ReplicaOptions {
    let small = options(dtype);
    let optimizer = Some(Arc::new(Sgd { momentum: 0.9, ..Sgd::default() }) as _);
    let engine = EngineOptions { overlap, optimizer, ..small.engine.clone() };
    ReplicaOptions { algorithm: algorithm.clone(), engine, ..small }
}

impl Net {
    /// Like [`Net::loss`], waiting for the parameters of each layer before it.
    fn loss_of_layers(&self, replica: &Replica, x: &Tensor) -> hexagram_candle::Result<Tensor> {
        let target = x.sum_keepdim(1)?.sin()?;
        replica.wait_for("first")?;
        let hidden = self.first.forward(x)?.tanh()?;
        replica.wait_for("second")?;
        Ok((self.second.forward(&hidden)? - target)?.sqr()?.mean_all()?)
    }
}

/// Returns the result of a training on each rank, with occasional evaluations of the mean and checks of the replicas.
fn trained(ranks: usize, algorithm: &AnyAlgorithm, overlap: Overlap, dtype: DType) -> Vec<Vec<f64>> {
    let run = |comm: Communicator| {
        let train = || -> hexagram_candle::Result<Vec<f64>> {
            let varmap = same_start(dtype);
            let (model, mut replica) =
                Replica::build(&comm, &varmap, under(algorithm, overlap, dtype), Net::new)?;
            replica.set_learning_rate(0.05);
            let mut seen = Vec::new();
            let judge = || Ok::<_, Error>(values(&varmap));
            for step in 0..STEPS {
                let mine = batch(step * ranks + comm.rank(), dtype);
                let loss = replica.step_with(|replica| model.loss_of_layers(replica, &mine))?;
                seen.push(loss.to_dtype(DType::F64)?.to_scalar()?);
                match step {
                    1 => seen.push(f64::from(replica.is_identical()?)),
                    3 => seen.extend(replica.evaluate_mean(judge)?.result),
                    _ => {}
                }
            }
            replica.settle()?;
            seen.extend(values(&varmap));
            Ok(seen)
        };
        hexagram(train())
    };
    spawn(TransportKind::Thread, ranks, run).unwrap()
}

#[test]
fn training_is_bit_for_bit_that_without() {
    for name in ["gradient-allreduce", "bytegrad", "local-sgd(period=2)", "topk-ef", "choco-sgd"] {
        let algorithm = registry::named(name).unwrap();
        for ranks in [2, 3] {
            let of = |overlap| trained(ranks, &algorithm, overlap, DType::F32);
            assert!(of(Overlap::Forward) == of(Overlap::Backward), "{name}, {ranks} ranks");
        }
    }
    let algorithm = registry::named("gradient-allreduce").unwrap();
    let of = |overlap| trained(2, &algorithm, overlap, DType::BF16);
    assert!(of(Overlap::Forward) == of(Overlap::Backward), "16 bits");
}

/// Trains for two steps whose forward passes wait for these modules only; returns the error of each rank.
fn refused(waits: &[&str]) -> Vec<String> {
    let run = |comm: Communicator| {
        let train = || -> hexagram_candle::Result<()> {
            let varmap = same_start(DType::F32);
            let options = under(&registry::named("gradient-allreduce")?, Overlap::Forward, DType::F32);
            let (model, mut replica) = Replica::build(&comm, &varmap, options, Net::new)?;
            replica.set_learning_rate(0.05);
            (0..2).try_for_each(|step| {
                let mine = batch(step, DType::F32);
                let loss = |replica: &Replica| {
                    waits.iter().try_for_each(|module| replica.wait_for(module))?;
                    Ok::<_, Error>(model.loss(&mine)?)
                };
                replica.step_with(loss).map(drop)
            })
        };
        Ok(train().unwrap_err().to_string())
    };
    spawn(TransportKind::Thread, 2, run).unwrap()
}

#[test]
fn a_module_that_did_not_wait_and_one_that_there_is_not_are_named() {
    for error in refused(&["first"]) {
        assert!(error.contains("`second.") && error.contains("was not waited for"), "{error}");
    }
    for error in refused(&["first", "third"]) {
        assert!(error.contains("no parameter of the model is `third`"), "{error}");
    }
}
