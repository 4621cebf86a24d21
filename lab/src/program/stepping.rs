//! Optimizer and learning rate of the command line: `--optimizer`, `--lr`, `--weight-decay` and `--schedule`, read and
//! checked before any rank starts.

use crate::training::groups;
use clap::{Args, ValueEnum};
use hexagram::algorithms::{AnyAlgorithm, EngineOptions, LearningRate, Optimizer, Overlap, optimizer};
use hexagram::{Error, Result};
use std::sync::Arc;

/// Options about the optimizer and its learning rate, as they were typed.
#[derive(Args, Debug, Clone)]
pub struct Stepping {
    /// Learning rate, at its largest [default: the algorithm's or the optimizer's own]
    #[arg(long, allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// Optimizer that steps with what the algorithm leaves of the gradients, with options as in
    /// 'sgd(momentum=0.9, nesterov=true)'; `list` prints the choices, and `help:NAME` the options of one [default: the
    /// algorithm's own]
    #[arg(long)]
    pub optimizer: Option<String>,
    /// Weight decay of that optimizer, but for biases, which never decay [default: the optimizer's own]
    #[arg(long, allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,
    /// Schedule of the learning rate: constant, linear, cosine, step or one-cycle, with options as in
    /// 'cosine(warmup=50, end=0.1)'; it is over at the end of the training
    #[arg(long, default_value = "constant")]
    pub schedule: String,
}

/// Optimizer and learning rate of a training.
#[derive(Debug, Clone)]
pub struct Stepper {
    /// Optimizer that steps with what the algorithm leaves of the gradients.
    pub optimizer: Arc<dyn Optimizer>,
    /// Learning rate γ, at its largest.
    pub learning_rate: f64,
    schedule: String,
}

/// Learning rate of each optimizer but SGD, with algorithms that leave the mean of the gradients. docs/algorithms.md
/// has what others come to on the digits.
const OF_OPTIMIZERS: &[(&str, f64)] =
    &[("adam", 0.002), ("adamw", 0.002), ("lion", 0.0003), ("lamb", 0.003), ("lars", 2.0), ("muon", 0.002)];

impl Stepping {
    /// Reads the options for an algorithm, for which this is a good learning rate with its own optimizer.
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
    /// Returns the learning rate of every step of a training of so many.
    ///
    /// # Errors
    /// One line that names option, value and range, if the schedule does not fit so few steps.
    pub fn rate(&self, steps: u64) -> Result<LearningRate> {
        let rate = LearningRate::catalogue(self.learning_rate, steps).named(&self.schedule)?;
        // `--lr` says it, and what a checkpoint was made with.
        if rate.base == self.learning_rate {
            return Ok(rate);
        }
        Err(Error::usage(format!("--schedule {} has a base", self.schedule), "give it as --lr"))
    }

    /// Returns the engine's options: the optimizer, and biases that do not decay.
    pub fn engine(&self) -> EngineOptions {
        EngineOptions {
            optimizer: Some(Arc::clone(&self.optimizer)),
            groups: groups(),
            ..EngineOptions::default()
        }
    }
}

/// Creates the optimizer that a text spells, with a weight decay if there is one.
///
/// # Errors
/// As [`optimizer::named`].
pub(super) fn named(text: &str, decay: Option<f64>) -> Result<Arc<dyn Optimizer>> {
    let Some(decay) = decay else { return optimizer::named(text) };
    match text.trim_end().strip_suffix(')') {
        Some(open) => optimizer::named(&format!("{open}, weight_decay={decay})")),
        None => optimizer::named(&format!("{text}(weight_decay={decay})")),
    }
}

/// Returns the learning rate for an optimizer, by its spelling: the algorithm's where it is the algorithm's own
/// optimizer.
fn rate_for(text: &str, own: &str, of_algorithm: f64) -> f64 {
    let word = |text: &str| text.split('(').next().unwrap_or_default().trim().to_owned();
    let found = OF_OPTIMIZERS.iter().find(|(name, _)| *name == word(text) && *name != word(own));
    found.map_or(of_algorithm, |(_, rate)| *rate)
}

/// Passes that a step's communication runs beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Passes {
    /// Communication overlaps the backward pass
    Backward,
    /// Communication overlaps the backward pass and the next forward pass
    Forward,
}

impl Passes {
    /// Returns it as the engine's option.
    pub fn overlap(self) -> Overlap {
        match self {
            Passes::Backward => Overlap::Backward,
            Passes::Forward => Overlap::Forward,
        }
    }
}
