//! Replica that a training steps: the engine's, for a task, or a framework's.

use super::RunError;
use crate::task::{ModelValues, Task};
use crate::training;
use hexagram::algorithms::checkpoint::{BackgroundSaves, Checkpoints, Record, Snapshots};
use hexagram::algorithms::engine::Evaluation;
use hexagram::algorithms::trace::Trace;
use hexagram::algorithms::{AnyAlgorithm, DataParallel, EngineOptions, LearningRate};
use hexagram::physical::hash;
use hexagram::{Buffer, Communicator, Result};

/// One rank's replica of a model. All methods but [`engine`](Self::engine) and
/// [`set_learning_rate`](Self::set_learning_rate) are collective calls, between steps.
#[allow(clippy::missing_errors_doc, reason = "all return the errors of the engine's method of the same name")]
pub trait Trained {
    /// Returns the engine that has the replica.
    fn engine(&self) -> &DataParallel;

    /// Sets the learning rate of the steps from here on.
    fn set_learning_rate(&mut self, rate: LearningRate);

    /// Begins to record a trace.
    fn trace(&mut self) -> Result<(), RunError>;

    /// Ends the trace, which rank 0 gets.
    fn collect(&mut self) -> Result<Option<Trace>, RunError>;

    /// Waits until the communication of all steps has ended.
    fn settle(&mut self) -> Result<(), RunError>;

    /// Replaces all replicas by their mean.
    fn average(&mut self) -> Result<(), RunError>;

    /// Returns true if the replicas of all ranks are equal, bit for bit.
    fn is_identical(&mut self) -> Result<bool, RunError>;

    /// Returns the accuracy of the mean of the replicas on held-out samples, and their distance from it. Leaves the
    /// replicas as they are.
    fn evaluate(&mut self) -> Result<Evaluation<f64>, RunError>;

    /// Begins to save the replica, and `own`, in the background. Fails with the engine's own error if the engine can
    /// continue.
    fn begin_save(&mut self, saves: &mut BackgroundSaves, own: Record) -> Result<(), RunError>;

    /// Waits for the save in progress. Fails like [`begin_save`](Self::begin_save).
    fn finish_save(&mut self, saves: &mut BackgroundSaves) -> Result<(), RunError>;

    /// Keeps the state of this step, and `own`, in memory. A collective call only as [`Snapshots::keep`] is.
    fn keep(&mut self, kept: &mut Snapshots, own: &dyn Fn() -> Record) -> Result<(), RunError>;

    /// Loads the state that earlier members have kept, if there is any. Returns the record kept with it.
    fn load_kept(&mut self, kept: &mut Snapshots) -> Result<Option<Record>, RunError>;

    /// Loads the newest checkpoint if there is one and `fits` accepts the record saved with it. Returns this record.
    fn load_if(
        &mut self,
        checkpoints: &Checkpoints,
        fits: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Option<Record>, RunError>;
}

/// Replica of a task's model.
pub struct TaskReplica<'a, T: Task + ?Sized> {
    /// Engine that has the parameters, in the order of [`Task::parameters`].
    pub engine: DataParallel,
    task: &'a T,
}

/// Returns the values of all parameters of a task's replica, after the last step's messages have arrived.
///
/// # Errors
/// As [`DataParallel::values`].
pub fn values(engine: &DataParallel, task: &(impl Task + ?Sized)) -> Result<ModelValues> {
    training::values(engine, task.parameters().len())
}

impl<'a, T: Task + ?Sized> TaskReplica<'a, T> {
    /// Creates this rank's replica, with initial values derived from `seed`. A collective call.
    ///
    /// # Errors
    /// As [`DataParallel::new`].
    pub fn new(
        comm: &Communicator,
        task: &'a T,
        algorithm: AnyAlgorithm,
        (options, seed): (EngineOptions, u64),
    ) -> Result<Self> {
        let mut engine = DataParallel::new(comm, task.parameters(), algorithm, options)?;
        for (at, values) in task.initial(seed).iter().enumerate() {
            engine.set_parameter(at, &Buffer::from_slice(values)?)?;
        }
        Ok(TaskReplica { engine, task })
    }
}

impl<T: Task + ?Sized> Trained for TaskReplica<'_, T> {
    fn engine(&self) -> &DataParallel {
        &self.engine
    }

    fn set_learning_rate(&mut self, rate: LearningRate) {
        self.engine.set_learning_rate(rate);
    }

    fn trace(&mut self) -> Result<(), RunError> {
        Ok(self.engine.trace().begin()?)
    }

    fn collect(&mut self) -> Result<Option<Trace>, RunError> {
        Ok(self.engine.trace().collect()?)
    }

    fn settle(&mut self) -> Result<(), RunError> {
        Ok(self.engine.settle()?)
    }

    fn average(&mut self) -> Result<(), RunError> {
        Ok(self.engine.average()?)
    }

    fn is_identical(&mut self) -> Result<bool, RunError> {
        let bits = values(&self.engine, self.task)?
            .into_iter()
            .flatten()
            .flat_map(|value| value.to_bits().to_le_bytes());
        let digest = hash::of_bytes(hash::START, bits) as i64;
        let comm = self.engine.communicator();
        let mut all = vec![0; comm.size()];
        comm.blocking().all_gather(&[digest], &mut all)?;
        Ok(all.iter().all(|other| *other == digest))
    }

    fn evaluate(&mut self) -> Result<Evaluation<f64>, RunError> {
        let task = self.task;
        let accuracy = |engine: &DataParallel| -> Result<_> { Ok(task.accuracy(&values(engine, task)?)) };
        let Evaluation { result, consensus_distance } = self.engine.with_mean(accuracy)?;
        Ok(Evaluation { result: result?.unwrap_or(f64::NAN), consensus_distance })
    }

    fn begin_save(&mut self, saves: &mut BackgroundSaves, own: Record) -> Result<(), RunError> {
        Ok(saves.begin(&mut self.engine, own)?)
    }

    fn finish_save(&mut self, saves: &mut BackgroundSaves) -> Result<(), RunError> {
        Ok(saves.finish(&mut self.engine).map(drop)?)
    }

    fn keep(&mut self, kept: &mut Snapshots, own: &dyn Fn() -> Record) -> Result<(), RunError> {
        Ok(kept.keep(&mut self.engine, own)?)
    }

    fn load_kept(&mut self, kept: &mut Snapshots) -> Result<Option<Record>, RunError> {
        Ok(kept.load(&mut self.engine)?)
    }

    fn load_if(
        &mut self,
        checkpoints: &Checkpoints,
        fits: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Option<Record>, RunError> {
        Ok(checkpoints.load_if(&mut self.engine, fits)?)
    }
}
