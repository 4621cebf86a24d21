//! The learning rate of the steps: told once or in every step, or a schedule that the engine follows.

use super::DataParallel;
use crate::optimizer::LearningRate;
use hexagram_logical::Result;

impl DataParallel {
    /// Sets the learning rate γ of the steps from here on, the same on every rank: a number, or a schedule, which is of
    /// the step's number and so may begin at any of them. It replaces [`EngineOptions::learning_rate`]. Checkpoints
    /// keep it. What cannot be meant, the next [`DataParallel::begin`] or [`DataParallel::step`] refuses.
    ///
    /// [`EngineOptions::learning_rate`]: super::EngineOptions::learning_rate
    pub fn set_learning_rate(&mut self, rate: impl Into<LearningRate>) {
        self.rate = Some(rate.into());
        self.follow_rate();
    }

    /// Sets the learning rate that ranks compare with each other in the messages of the next steps, where the framework's
    /// optimizer has several, such as one for each group; `None` for that of
    /// [`set_learning_rate`](Self::set_learning_rate).
    pub fn compare_rate(&mut self, rate: Option<f64>) {
        self.present.compared_rate = rate;
    }

    /// Returns the learning rate of the next step, or of the one under way; `None` if it was not told.
    pub fn learning_rate(&self) -> Option<f64> {
        self.rate.map(|rate| rate.at(self.present.step))
    }

    /// Takes over the learning rate of the step that begins.
    pub(super) fn follow_rate(&mut self) {
        self.present.learning_rate = self.learning_rate();
    }

    pub(super) fn check_learning_rate(&self) -> Result<()> {
        self.rate.map_or(Ok(()), |rate| rate.check())
    }
}
