//! Algorithms that take several gradients of a batch, and the loss that algorithms receive.

use super::*;
use hexagram_algorithms::logical::{Buffer, Result as Outcome};
use hexagram_algorithms::{About, Algorithm, Bucket, Buckets, Combine, Context, Needs, Trigram};

/// Steps with the gradient at the point of steepest loss, and reports the loss as a metric.
#[derive(Debug, Clone)]
struct Sam;

impl Algorithm for Sam {
    type State = Buffer;

    fn about(&self) -> About {
        About::new("sam", Trigram { centralized: true, synchronous: true, full_precision: true })
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn evaluations(&self, _: u64) -> u32 {
        2
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Outcome<Buffer> {
        context.copy_of(&bucket.parameters)
    }

    async fn evaluated(&self, context: &Context, x: &mut Buffer, bucket: &mut Bucket) -> Outcome<()> {
        context.mean(&mut bucket.gradients).await?;
        context.copy(&bucket.parameters, x)?;
        context.add_scaled(0.1 / context.norm(&bucket.gradients)?, &bucket.gradients, &bucket.parameters)
    }

    async fn gradients_ready(&self, context: &Context, x: &mut Buffer, bucket: &mut Bucket) -> Outcome<()> {
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
                let loss = replica.step_with(|_| Ok::<_, Error>(model.loss(&mine)?))?;
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
fn a_step_whose_second_loss_failed_is_not_ended_with_another_batch() {
    let refused = spawn(TransportKind::Thread, 1, |comm| {
        let refusals = || {
            let varmap = same_start(DType::F64);
            let (model, mut replica) = Replica::build(&comm, &varmap, with_sam(), Net::new)?;
            let first = model.loss(&batch(0, DType::F64))?;
            let mut losses = vec![first];
            let only_once =
                |_: &Replica| losses.pop().ok_or_else(|| Error::from(candle_core::Error::msg("no batch")));
            replica.step_with(only_once).unwrap_err();
            let next = model.loss(&batch(1, DType::F64))?;
            Ok([
                replica.step_with(|_| Ok::<_, Error>(next.clone())).map(drop),
                replica.forward(),
                replica.step(&next),
                replica.backward_no_sync(&next),
                replica.backward(&next).map(drop),
            ]
            .map(|outcome| outcome.unwrap_err().to_string()))
        };
        hexagram(refusals())
    });
    for error in &refused.unwrap()[0] {
        assert!(error.contains("sam waits for another gradient of the same batch"), "{error}");
    }
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

/// Reports the loss as a metric.
#[derive(Debug, Clone)]
struct TellsLoss;

impl Algorithm for TellsLoss {
    type State = ();

    fn about(&self) -> About {
        About::new("tells-loss", Trigram { centralized: true, synchronous: true, full_precision: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Outcome<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, _: &mut (), _: &mut Bucket) -> Outcome<()> {
        context.metric("loss", Combine::Max, context.loss()?)
    }
}
