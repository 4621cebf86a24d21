//! The mean of all replicas, temporarily: for evaluation during a training whose replicas differ.

use crate::engine::DataParallel;
use crate::engine::precision::widen;
use hexagram_logical::device::measure;
use hexagram_logical::{Buffer, Communicator, DType, Error, ReadView, ReduceOp, Result};

/// Result of [`DataParallel::with_mean`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation<R> {
    /// Value that the given function returned.
    pub result: R,
    /// Root mean square distance of the replicas from their mean, (1/n Σᵢ ‖xᵢ − x̄‖²)^½, the same on all ranks; 0 if
    /// the algorithm keeps replicas identical.
    pub consensus_distance: f64,
}

impl DataParallel {
    /// Runs `evaluate` while every replica is replaced by the mean of all, as [`average`](Self::average) computes it,
    /// then restores every replica: parameters, optimizer state and algorithm state have the same bits as before. An
    /// asynchronous algorithm is [settled](Self::settle) first, and its replicas are restored to their state after
    /// that. A collective call, between steps.
    ///
    /// ```
    /// use hexagram::algorithms::local_sgd::LocalSgd;
    /// use hexagram::logical::{TransportKind, testing::spawn};
    /// use hexagram::algorithms::testing::{Setup, Trainer};
    /// use std::sync::Arc;
    ///
    /// let seen = spawn(TransportKind::Thread, 2, |comm| {
    ///     let local = Arc::new(LocalSgd { period: 10, ..LocalSgd::default() });
    ///     let setup = Setup { learning_rate: 0.5, ..Setup::default() };
    ///     let mut trainer = Trainer::new(&comm, local, setup, &[vec![0.0f64]])?;
    ///     // Rank 0 steps to 0, rank 1 to 2.
    ///     trainer.step(|_, _| vec![-4.0 * comm.rank() as f64])?;
    ///     let mean = trainer.engine().with_mean(|engine| engine.values::<f64>(0))?;
    ///     Ok((mean.result?[0], mean.consensus_distance, trainer.parameters()?[0][0]))
    /// });
    /// assert_eq!(seen?, [(1.0, 1.0, 0.0), (1.0, 1.0, 2.0)]);
    /// # Ok::<(), hexagram::logical::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`average`](Self::average).
    pub fn with_mean<R>(&mut self, evaluate: impl FnOnce(&Self) -> R) -> Result<Evaluation<R>> {
        self.check_has_parameters()?;
        let replaced = self.replace_by_mean();
        let (kept, consensus_distance) = self.checked(replaced)?;
        let result = evaluate(self);
        for (kept, buffer) in kept.iter().zip(self.replica.get_mut().buffers(false)?) {
            buffer.write_all()?.copy_from(&kept.read_all()?)?;
        }
        Ok(Evaluation { result, consensus_distance })
    }

    /// Replaces this replica by the mean; returns the original, if replicas may differ, and the consensus distance.
    fn replace_by_mean(&mut self) -> Result<(Vec<Buffer>, f64)> {
        self.complete()?;
        if self.algorithm.trigram().synchronous { self.between_passes() } else { self.settle() }?;
        if self.algorithm.keeps_replicas_identical() {
            return Ok((Vec::new(), 0.0));
        }
        let own = self.replica.get_mut().buffers(false)?;
        let kept = own.iter().map(|own| own.copied()).collect::<Result<Vec<_>>>()?;
        self.mean_of_replicas(false)?;
        let pairs = kept.iter().zip(self.replica.get_mut().buffers(false)?);
        let distance = consensus_distance(&self.comm, pairs.map(|(own, mean)| (own, &*mean)))?;
        Ok((kept, distance))
    }

    pub(super) fn check_has_parameters(&self) -> Result<()> {
        if self.works_on_parameters() {
            return Ok(());
        }
        let remedy = "average the parameters in the framework, or use an engine optimizer";
        Err(Error::usage("the engine does not have the parameters", remedy))
    }
}

/// Returns (1/n Σᵢ ‖xᵢ − x̄‖²)^½ over all given pairs of a value of this rank and its mean, the same on all ranks. A
/// collective call.
///
/// # Errors
/// [`Error::Usage`] unless the values are floats; as [`Communicator::all_reduce`].
pub fn consensus_distance<'a>(
    comm: &Communicator,
    pairs: impl IntoIterator<Item = (&'a Buffer, &'a Buffer)>,
) -> Result<f64> {
    let views = pairs.into_iter().map(|(own, mean)| Ok([wide(own)?, wide(mean)?]));
    let distances = measure::squared_distances(views.collect::<Result<Vec<_>>>()?)?;
    let mut square = [distances.into_iter().sum::<f64>()];
    comm.blocking().all_reduce(&mut square, ReduceOp::Mean)?;
    Ok(square[0].sqrt())
}

/// Returns the numbers of a buffer; those of 16 bits in f32.
fn wide(buffer: &Buffer) -> Result<ReadView> {
    let view = buffer.read_all()?;
    if !buffer.dtype().is_half() {
        return Ok(view);
    }
    let wide = buffer.zeroed_same_device(DType::F32, buffer.len())?;
    widen(&view, &mut wide.write_all()?, false)?;
    wide.read_all()
}
