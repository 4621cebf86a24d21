//! A candle model with its replica, for training, evaluation and saving by the sessions of the laboratory.

use super::data::ImageDataset;
use super::model::{PartwiseModel, correct};
use candle_core::{DType, Device, Tensor};
use hexagram::algorithms::checkpoint::{BackgroundSaves, Checkpoints, Record, Snapshots};
use hexagram::algorithms::engine::Evaluation;
use hexagram::algorithms::trace::Trace;
use hexagram::algorithms::{DataParallel, LearningRate};
use hexagram::sampler::loader::{DataLoader, LoaderOptions};
use hexagram::sampler::{DistributedOptions, DistributedSampler};
use hexagram::{Communicator, ReduceOp};
use hexagram_candle::Replica;
use hexagram_lab::run::{self, RunError};

/// A model in training.
pub(crate) struct TrainedModel {
    pub(crate) replica: Replica,
    pub(crate) model: Box<dyn PartwiseModel>,
    pub(crate) held_out: ImageDataset,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

impl run::Trained for TrainedModel {
    fn engine(&self) -> &DataParallel {
        self.replica.engine()
    }

    fn set_learning_rate(&mut self, rate: LearningRate) {
        self.replica.set_learning_rate(rate);
    }

    fn trace(&mut self) -> Result<(), RunError> {
        Ok(self.replica.trace()?)
    }

    fn collect(&mut self) -> Result<Option<Trace>, RunError> {
        Ok(self.replica.collect()?)
    }

    fn settle(&mut self) -> Result<(), RunError> {
        Ok(self.replica.settle()?)
    }

    fn average(&mut self) -> Result<(), RunError> {
        Ok(self.replica.average()?)
    }

    fn is_identical(&mut self) -> Result<bool, RunError> {
        Ok(self.replica.is_identical()?)
    }

    fn evaluate(&mut self) -> Result<Evaluation<f64>, RunError> {
        let TrainedModel { replica, model, held_out, dtype, device } = self;
        let comm = replica.engine().communicator().clone();
        replica.evaluate_mean(|| accuracy(&comm, &**model, held_out, (*dtype, device)))
    }

    fn begin_save(&mut self, saves: &mut BackgroundSaves, own: Record) -> Result<(), RunError> {
        self.replica.begin_save(saves, own).map_err(of_the_engine)
    }

    fn finish_save(&mut self, saves: &mut BackgroundSaves) -> Result<(), RunError> {
        self.replica.finish_save(saves).map(drop).map_err(of_the_engine)
    }

    fn keep(&mut self, kept: &mut Snapshots, own: &dyn Fn() -> Record) -> Result<(), RunError> {
        Ok(self.replica.keep(kept, own)?)
    }

    fn load_kept(&mut self, kept: &mut Snapshots) -> Result<Option<Record>, RunError> {
        Ok(self.replica.load_kept(kept)?)
    }

    fn load_if(
        &mut self,
        checkpoints: &Checkpoints,
        fits: &mut dyn FnMut(&Record) -> hexagram::Result<()>,
    ) -> Result<Option<Record>, RunError> {
        Ok(self.replica.load_if(checkpoints, fits)?)
    }
}

/// Returns the error of the engine inside an error of the adapter, if there is one.
fn of_the_engine(error: hexagram_candle::Error) -> RunError {
    match error {
        hexagram_candle::Error::Hexagram(error) => (*error).into(),
        error => error.into(),
    }
}

/// Returns the share of the held-out images that are classified correctly; each image is evaluated by one rank.
fn accuracy(
    comm: &Communicator,
    model: &dyn PartwiseModel,
    held_out: &ImageDataset,
    (dtype, device): (DType, &Device),
) -> Result<f64, RunError> {
    const BATCH: usize = 256;
    let sampler = DistributedSampler::new(DistributedOptions {
        len: held_out.len(),
        replicas: comm.size(),
        rank: comm.rank(),
        shuffle: false,
        exact: true,
        ..DistributedOptions::default()
    })?;
    let sampler = Some(Box::new(sampler) as _);
    let options = LoaderOptions { sampler, batch_size: Some(BATCH), ..LoaderOptions::default() };
    let mut count = [0i64];
    for batch in DataLoader::new(held_out.clone(), options)?.iter() {
        let (images, labels) = batch?;
        let images = Tensor::from_slice(&images, images.shape().to_vec(), device)?.to_dtype(dtype)?;
        let labels = Tensor::from_slice(&labels, labels.len(), device)?;
        count[0] += i64::from(correct(model, &images, &labels)?);
    }
    comm.blocking().all_reduce(&mut count, ReduceOp::Sum)?;
    Ok(count[0] as f64 / held_out.len() as f64)
}
