//! Optimizer and learning rate of the command line: `--optimizer`, `--lr`, `--weight-decay` and `--schedule`, read and
//! checked before any rank starts.

use crate::training::groups;
use clap::{Args, ValueEnum};
use hexagram::algorithms::{AnyAlgorithm, EngineOptions, LearningRate, Optimizer, Overlap, optimizer};
use hexagram::{Error, Result};
use std::sync::Arc;

/// Options of the optimizer and its learning rate, as typed.
#[derive(Args, Debug, Clone)]
pub struct OptimizerArgs {
    /// Peak learning rate [default: that of the algorithm or the optimizer]
    #[arg(long, allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// Optimizer that applies the gradients after the algorithm, with options as in 'sgd(momentum=0.9,
    /// nesterov=true)'; `list` prints the choices, and `help:NAME` the options of one [default: that of the
    /// algorithm]
    #[arg(long)]
    pub optimizer: Option<String>,
    /// Weight decay of that optimizer; biases never decay [default: that of the optimizer]
    #[arg(long, allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,
    /// Schedule of the learning rate: constant, linear, cosine, step or one-cycle, with options as in
    /// 'cosine(warmup=50, end=0.1)'; it ends with the training
    #[arg(long, default_value = "constant")]
    pub schedule: String,
}

/// Optimizer and learning rate of a training.
#[derive(Debug, Clone)]
pub struct Stepper {
    /// Optimizer that applies the gradients after the algorithm.
    pub optimizer: Arc<dyn Optimizer>,
    /// Peak learning rate γ.
    pub learning_rate: f64,
    schedule: String,
}

/// Learning rate of each optimizer except SGD, with algorithms that leave the mean of the gradients.
/// docs/algorithms.md shows the results of others on the digits.
const OF_OPTIMIZERS: &[(&str, f64)] =
    &[("adam", 0.002), ("adamw", 0.002), ("lion", 0.0003), ("lamb", 0.003), ("lars", 2.0), ("muon", 0.002)];

impl OptimizerArgs {
    /// Parses the options for an algorithm. `learning_rate` is a good value with the optimizer of the algorithm.
    ///
    /// # Errors
    /// One line that names option, value and range.
    pub fn check(&self, algorithm: &AnyAlgorithm, learning_rate: f64) -> Result<Stepper> {
        let own = algorithm.optimizers().by_default().unwrap_or("sgd");
        let text = self.optimizer.as_deref().unwrap_or(own);
        let optimizer = named(text, self.weight_decay)?;
        let learning_rate = self.lr.unwrap_or_else(|| rate_for(text, own, learning_rate));
        if !(learning_rate.is_finite() && learning_rate > 0.0) {
            let what = format!("--lr {learning_rate} is not a learning rate");
            return Err(Error::usage(what, "use a positive number"));
        }
        Ok(Stepper { optimizer, learning_rate, schedule: self.schedule.clone() })
    }
}

impl Stepper {
    /// Returns the learning rate of every step of a training of `steps` steps.
    ///
    /// # Errors
    /// An error that names option, value and range, if the schedule does not fit that number of steps.
    pub fn rate(&self, steps: u64) -> Result<LearningRate> {
        let rate = LearningRate::catalogue(self.learning_rate, steps).named(&self.schedule)?;
        // The base belongs in `--lr`, which a checkpoint records.
        if rate.base == self.learning_rate {
            return Ok(rate);
        }
        Err(Error::usage(format!("--schedule {} sets a base", self.schedule), "use --lr for the base"))
    }

    /// Returns the engine options: the optimizer, with biases that do not decay.
    pub fn engine(&self) -> EngineOptions {
        EngineOptions {
            optimizer: Some(Arc::clone(&self.optimizer)),
            groups: groups(),
            ..EngineOptions::default()
        }
    }
}

/// Creates the optimizer of a spelling, with a weight decay if it is given.
///
/// # Errors
/// As [`optimizer::named`].
pub(crate) fn named(text: &str, decay: Option<f64>) -> Result<Arc<dyn Optimizer>> {
    let Some(decay) = decay else { return optimizer::named(text) };
    match text.trim_end().strip_suffix(')') {
        Some(open) => optimizer::named(&format!("{open}, weight_decay={decay})")),
        None => optimizer::named(&format!("{text}(weight_decay={decay})")),
    }
}

/// Returns the learning rate for an optimizer, by its spelling: that of the algorithm for its own optimizer.
fn rate_for(text: &str, own: &str, of_algorithm: f64) -> f64 {
    let word = |text: &str| text.split('(').next().unwrap_or_default().trim().to_owned();
    let found = OF_OPTIMIZERS.iter().find(|(name, _)| *name == word(text) && *name != word(own));
    found.map_or(of_algorithm, |(_, rate)| *rate)
}

/// Passes that the communication of a step overlaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OverlappedPasses {
    /// Communication overlaps the backward pass
    Backward,
    /// Communication overlaps the backward pass and the next forward pass
    Forward,
}

impl OverlappedPasses {
    /// Returns the option of the engine.
    pub fn overlap(self) -> Overlap {
        match self {
            OverlappedPasses::Backward => Overlap::Backward,
            OverlappedPasses::Forward => Overlap::Forward,
        }
    }
}
