//! Tasks: models with data. Implement [`Task`] to compare algorithms on a problem of your own.

mod digits;
mod lines;
mod quadratics;
#[cfg(test)]
mod tests;
mod text;

pub use digits::{CLASSES, Digits, Images, PIXELS, SIDE};
pub use lines::{LinesTask, LinesText};
pub use quadratics::Quadratics;
pub use text::TextTask;

use hexagram::{Parameter, Result};
use std::fmt;

/// Value of each parameter of a model, in the order of [`Task::parameters`].
pub type ModelValues = Vec<Vec<f32>>;

/// Receives the gradient of one parameter, by its number, as soon as it is complete.
pub type GradientReady<'a> = dyn FnMut(usize, &[f32]) -> Result<()> + 'a;

/// Model with data: its loss is a mean over samples, which are divided among ranks.
///
/// It has no notion of ranks. Its results follow only from its arguments, bit for bit.
pub trait Task: fmt::Debug + Send + Sync {
    /// Returns the name, in kebab case.
    fn name(&self) -> &str;

    /// Returns the parameters, in the order in which the forward pass uses them.
    fn parameters(&self) -> Vec<Parameter>;

    /// Returns the values before the first step. The same for all ranks.
    fn initial(&self, seed: u64) -> ModelValues;

    /// Returns the label of each training sample, by which a [partition](hexagram::sampler::Partition) divides them.
    fn labels(&self) -> &[usize];

    /// Returns the number of samples of a rank's batch; `None` for all samples of the rank.
    fn batch(&self) -> Option<usize>;

    /// Computes the mean gradient of some samples at `values`, and passes each parameter's gradient to `ready` in the
    /// order of a backward pass. Returns their mean loss.
    ///
    /// # Errors
    /// The first of `ready`.
    fn gradient(&self, values: &ModelValues, samples: &[usize], ready: &mut GradientReady<'_>)
    -> Result<f64>;

    /// Judges a model.
    fn evaluate(&self, values: &ModelValues) -> ModelEvaluation;

    /// Returns the share of held-out samples that are classified correctly, from 0 to 1, if the task has any.
    fn accuracy(&self, values: &ModelValues) -> Option<f64> {
        self.evaluate(values).accuracy
    }
}

/// Judgement of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelEvaluation {
    /// Loss over all training samples, or over held-out ones if the task says so; minus the loss of the optimum if
    /// that is known.
    pub loss: f64,
    /// Share of held-out samples that are classified correctly, from 0 to 1, if the task has any.
    pub accuracy: Option<f64>,
    /// Distance ‖x − x*‖ to the optimum, if the optimum is known.
    pub distance: Option<f64>,
}

/// Creates the declaration of a parameter of f32.
fn parameter(name: &str, shape: &[usize]) -> Parameter {
    Parameter { name: name.to_owned(), dtype: hexagram::DType::F32, shape: shape.to_vec() }
}

/// Returns the number of the largest entry, the first of equal ones.
fn largest(entries: &[f32]) -> usize {
    let larger = |best: usize, at: usize| if entries[at] > entries[best] { at } else { best };
    (0..entries.len()).fold(0, larger)
}
