//! The learning rate of the steps: set once or in every step, or a schedule that the engine follows.

use crate::engine::DataParallel;
use crate::optimizer::LearningRate;
use hexagram_logical::Result;

impl DataParallel {
    /// Sets the learning rate γ of the steps from here on, the same on every rank: a number, or a schedule, a function
    /// of the step number, which can start at any step. It replaces [`EngineOptions::learning_rate`]. Checkpoints keep
    /// it. The next [`DataParallel::begin`] or [`DataParallel::step`] refuses an invalid one.
    ///
    /// [`EngineOptions::learning_rate`]: crate::EngineOptions::learning_rate
    pub fn set_learning_rate(&mut self, rate: impl Into<LearningRate>) {
        self.rate = Some(rate.into());
        self.follow_rate();
    }

    /// Sets the learning rate that ranks compare in the messages of the next steps, if an optimizer of the framework
    /// has several, such as one per group; `None` for that of [`set_learning_rate`](Self::set_learning_rate).
    pub fn compare_rate(&mut self, rate: Option<f64>) {
        self.present.compared_rate = rate;
    }

    /// Returns the learning rate of the next or current step; `None` if it was not set.
    pub fn learning_rate(&self) -> Option<f64> {
        self.rate.map(|rate| rate.at(self.present.step))
    }

    /// Updates the learning rate to that of the beginning step.
    pub(crate) fn follow_rate(&mut self) {
        self.present.learning_rate = self.learning_rate();
    }

    pub(super) fn check_learning_rate(&self) -> Result<()> {
        self.rate.map_or(Ok(()), |rate| rate.check())
    }
}
