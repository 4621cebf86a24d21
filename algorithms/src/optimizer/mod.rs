//! Optimizers that the engine runs itself, on flat memory: one pass over each bucket, and a state that is saved,
//! broadcast and moved between buckets with the parameters. Implement [`Optimizer`] for one of your own.

mod adam;
pub(crate) mod moments;
mod sgd;

pub use adam::Adam;
pub use moments::Moments;
pub use sgd::Sgd;

pub(crate) use crate::plugin::with_float;

use hexagram_logical::{Buffer, Error, Result};
use std::fmt;

/// A rule that changes parameters element by element, given gradients.
///
/// Fields must not differ between ranks: the `Debug` output is compared.
pub trait Optimizer: fmt::Debug + Send + Sync + 'static {
    /// What is remembered of every element, in buffers that are zero before the first step.
    fn slots(&self) -> &'static [&'static str];

    /// Refuses options that cannot be meant.
    ///
    /// # Errors
    /// [`Error::Usage`].
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// One step on one bucket; `slots` are in the order of [`Optimizer::slots`].
    ///
    /// # Errors
    /// [`Error::Usage`] for element types that it cannot deal with.
    fn step(&self, update: Update<'_>) -> Result<()>;
}

/// One optimizer step on one bucket.
pub struct Update<'a> {
    /// Steps before this one.
    pub step: u64,
    /// γ.
    pub learning_rate: f64,
    /// What the algorithm has left of the gradients.
    pub gradients: &'a Buffer,
    /// What is to be changed.
    pub parameters: &'a mut Buffer,
    /// What is remembered of every element.
    pub slots: &'a mut [Buffer],
}

/// Whether all is as an optimizer needs it, or what else it needs.
fn insist(sound: bool, optimizer: &dyn Optimizer, remedy: &str) -> Result<()> {
    if sound { Ok(()) } else { Err(Error::usage(format!("{optimizer:?} cannot learn"), remedy)) }
}
