//! Rehearsal: finds errors that would keep ranks from training before any of them starts, and reports them once.

use crate::virtual_ranks::in_virtual_time;
use hexagram::algorithms::{AnyAlgorithm, DataParallel, EngineOptions, Mode};
use hexagram::{DType, Parameter, Result};

/// Rejects an algorithm that does not support this number of ranks, or these options, by one step of a small model on
/// all ranks, in virtual time. The options name an optimizer.
///
/// ```
/// use hexagram::algorithms::registry;
/// use hexagram::{EngineOptions, Sgd};
/// use hexagram_lab::program::rehearse;
/// use std::sync::Arc;
///
/// let gossip = registry::named("d-psgd(graph=hypercube)")?;
/// let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..EngineOptions::default() };
/// rehearse(&gossip, &options, 4)?;
/// assert!(rehearse(&gossip, &options, 3).is_err());
/// # Ok::<(), hexagram::Error>(())
/// ```
///
/// # Errors
/// The error of the engine, or of the state of the algorithm.
pub fn rehearse(algorithm: &AnyAlgorithm, options: &EngineOptions, ranks: usize) -> Result<()> {
    let algorithm = algorithm.clone();
    let options = options.clone();
    let step = move |comm: &_| {
        let model = model();
        let gradients: Vec<Vec<f32>> = model.iter().map(|parameter| vec![1e-3; parameter.len()]).collect();
        let mut engine = DataParallel::new(comm, model, algorithm.clone(), options.clone())?;
        engine.set_learning_rate(1e-3);
        engine.step_with(|engine| {
            engine.forward()?;
            engine.set_loss(1.0);
            engine.begin(Mode::Synchronize)?;
            let hooks = engine.hooks();
            gradients.iter().enumerate().try_for_each(|(at, gradient)| hooks.ready_slice(at, gradient))
        })?;
        engine.settle()
    };
    in_virtual_time(ranks, step).map(drop)
}

/// Returns a matrix and a vector.
fn model() -> Vec<Parameter> {
    let parameter =
        |name: &str, shape: &[usize]| Parameter { name: name.into(), dtype: DType::F32, shape: shape.into() };
    vec![parameter("weights", &[64, 32]), parameter("biases", &[64])]
}
