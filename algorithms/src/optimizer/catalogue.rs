//! The optimizers by name, with options, such as `adamw(weight_decay=0.1)`.

use super::{Adam, AdamW, Lamb, Lars, Lion, Muon, Optimizer, Sgd};
use hexagram_logical::Result;
use hexagram_logical::options_text::Catalogue;
use std::sync::Arc;

/// Returns the catalogue of the built-in optimizers, with their defaults.
pub fn catalogue() -> Catalogue<Arc<dyn Optimizer>> {
    Catalogue::new("optimizer")
        .with(Sgd::default(), "stochastic gradient descent, plain or with momentum", shared)
        .with(Adam::default(), "adaptive moments, with L2 regularization", shared)
        .with(AdamW::default(), "adaptive moments, with decoupled weight decay", shared)
        .with(Lion::default(), "steps by the sign of a momentum", shared)
        .with(Lamb::default(), "Adam with steps as long as the tensor, for large batches", shared)
        .with(Lars::default(), "momentum with steps as long as the tensor, for large batches", shared)
        .with(Muon::default(), "orthogonal steps of matrices, AdamW for the rest", shared)
}

fn shared<O: Optimizer>(optimizer: O) -> Arc<dyn Optimizer> {
    Arc::new(optimizer)
}

/// Creates the optimizer from its spelling.
///
/// ```
/// let optimizer = hexagram::algorithms::optimizer::named("adamw(weight-decay=0.1, beta2=0.95)")?;
/// assert_eq!(optimizer.spelled(), "adamw(beta2=0.95, weight_decay=0.1)");
/// # Ok::<(), hexagram::logical::Error>(())
/// ```
///
/// # Errors
/// [`Error::Usage`](hexagram_logical::Error::Usage) of one line: for an unknown optimizer or option with the nearest
/// names, and for a value out of range with option, value and range.
pub fn named(text: &str) -> Result<Arc<dyn Optimizer>> {
    catalogue().named(text)
}
