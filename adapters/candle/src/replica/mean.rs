//! The mean of the replicas: to save at the end, and to evaluate during the training.

use crate::error::{Error, Result};
use crate::model::{ModelMemory, ModelTensor};
use crate::replica::Replica;
use hexagram_algorithms::engine::{Evaluation, consensus_distance};
use hexagram_algorithms::logical::{Buffer, Communicator, ReduceOp};

impl Replica {
    /// Replaces every parameter and running statistic by its mean over the ranks, for evaluation and saving, with any
    /// algorithm. A collective call.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if communication failed.
    pub fn average(&mut self) -> Result<()> {
        self.settle()?;
        if self.engine.works_on_parameters() {
            self.engine.average()?;
        }
        Divergence::of(self)?.show_mean(self.engine.communicator())?;
        self.settled()
    }

    /// Runs `evaluate` while every replica is replaced by the mean of all, including running statistics: in the tensors
    /// of the model and in its `VarMap`. Afterwards every replica is restored, bit for bit, and the training continues
    /// without a difference; an asynchronous algorithm is [settled](Self::settle) first. A collective call, between
    /// steps.
    ///
    /// ```
    /// # use candle_core::Tensor;
    /// # use hexagram_candle::{Replica, Result};
    /// # fn loss_on(held_out: &Tensor) -> Result<f64> { Ok(held_out.to_scalar()?) }
    /// /// Returns the loss of the mean, which no rank has as its replica.
    /// fn evaluated(replica: &mut Replica, held_out: &Tensor) -> Result<f64> {
    ///     let evaluation = replica.evaluate_mean(|| loss_on(held_out))?;
    ///     println!("replicas are {} from it", evaluation.consensus_distance);
    ///     Ok(evaluation.result)
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of `evaluate`; [`Error::Hexagram`] if communication failed.
    pub fn evaluate_mean<T, E: From<Error>>(
        &mut self,
        evaluate: impl FnOnce() -> Result<T, E>,
    ) -> Result<Evaluation<T>, E> {
        let apart = Divergence::of(self)?;
        let means = apart.show_mean(self.engine.communicator())?;
        let evaluation = if self.engine.works_on_parameters() {
            let parameters = &self.parameters;
            let home = &self.home;
            self.engine.with_mean(|engine| {
                let mut all = parameters.iter().enumerate();
                let shown = home.exchange(|| {
                    all.try_for_each(|(index, entry)| entry.publish(home, &engine.parameter(index)?))
                });
                shown.map_err(E::from).and_then(|()| evaluate())
            })
        } else {
            let distance = consensus_distance(self.engine.communicator(), apart.parameters(&means));
            distance.map(|distance| Evaluation { result: evaluate(), consensus_distance: distance })
        };
        let evaluation = evaluation.map_err(Error::from)?;
        apart.put_back()?;
        self.settled()?;
        let Evaluation { result, consensus_distance } = evaluation;
        Ok(Evaluation { result: result?, consensus_distance })
    }
}

/// Tensors that the engine does not have, with their original values.
struct Divergence {
    home: ModelMemory,
    kept: Vec<(ModelTensor, Buffer)>,
}

impl Divergence {
    fn of(replica: &Replica) -> Result<Self> {
        let home = replica.home.clone();
        let kept = replica.saved_apart().map(|entry| Ok((entry.clone(), home.to_buffer(&entry.var)?)));
        let kept = kept.collect::<Result<_>>()?;
        Ok(Divergence { home, kept })
    }

    /// Replaces each tensor by its mean over the ranks; returns the means.
    fn show_mean(&self, comm: &Communicator) -> Result<Vec<Buffer>> {
        let show = |(entry, own): &(ModelTensor, Buffer)| {
            let mut mean = own.copied()?;
            comm.block_on(comm.all_reduce(&mut mean, ReduceOp::Mean))?;
            self.home.exchange(|| entry.publish(&self.home, &mean.read_all()?))?;
            Ok(mean)
        };
        self.kept.iter().map(show).collect()
    }

    /// Returns the parameters among the tensors, each with its mean.
    fn parameters<'a>(&'a self, means: &'a [Buffer]) -> impl Iterator<Item = (&'a Buffer, &'a Buffer)> {
        let pairs = self.kept.iter().zip(means).filter(|((entry, _), _)| entry.tap.is_some());
        pairs.map(|((_, own), mean)| (own, mean))
    }

    fn put_back(&self) -> Result<()> {
        let put = |(entry, own): &(ModelTensor, Buffer)| entry.publish(&self.home, &own.read_all()?);
        self.home.exchange(|| self.kept.iter().try_for_each(put))
    }
}
