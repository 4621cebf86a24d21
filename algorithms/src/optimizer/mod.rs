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

/// Rule that changes parameters element by element, given gradients.
///
/// Fields must not differ between ranks: the `Debug` output is compared.
///
/// ```
/// use hexagram_algorithms::logical::Result;
/// use hexagram_algorithms::{Optimizer, optimizer::Update};
///
/// /// Gradient descent that steps by the sign: x ← x − γ sgn(g).
/// #[derive(Debug)]
/// struct SignSgd;
/// impl Optimizer for SignSgd {
///     fn slots(&self) -> &'static [&'static str] {
///         &[]
///     }
///     fn step(&self, update: Update<'_>) -> Result<()> {
///         let gradients = update.gradients.host::<f32>()?;
///         let mut parameters = update.parameters.host_mut::<f32>()?;
///         for (x, g) in parameters.iter_mut().zip(gradients.iter()) {
///             *x -= update.learning_rate as f32 * g.signum();
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Optimizer: fmt::Debug + Send + Sync + 'static {
    /// Returns the names of what is remembered of every element, in buffers that are zero before the first step.
    fn slots(&self) -> &'static [&'static str];

    /// Refuses options that cannot be meant.
    ///
    /// # Errors
    /// [`Error::Usage`].
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Makes one step on one bucket; `slots` are in the order of [`Optimizer::slots`].
    ///
    /// # Errors
    /// [`Error::Usage`] for element types that it cannot deal with.
    fn step(&self, update: Update<'_>) -> Result<()>;
}

/// Arguments of one optimizer step on one bucket.
pub struct Update<'a> {
    /// Number of steps before this one.
    pub step: u64,
    /// Learning rate γ.
    pub learning_rate: f64,
    /// Gradients, as the algorithm has left them.
    pub gradients: &'a Buffer,
    /// Parameters, to be changed.
    pub parameters: &'a mut Buffer,
    /// Buffers of the optimizer's own state, in the order of [`Optimizer::slots`].
    pub slots: &'a mut [Buffer],
}

/// Fails unless a condition of an optimizer holds, and says what it needs.
fn insist(sound: bool, optimizer: &dyn Optimizer, remedy: &str) -> Result<()> {
    if sound { Ok(()) } else { Err(Error::usage(format!("{optimizer:?} cannot learn"), remedy)) }
}
