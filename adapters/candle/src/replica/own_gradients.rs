//! Gradients of the tensors that each rank keeps for itself, between the backward passes of a step and the optimizer.

use crate::error::Result;
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};

/// Sums of the gradients of this rank.
pub(crate) struct OwnGradients(Vec<(Var, Option<Tensor>)>);

impl OwnGradients {
    /// Creates the sums for some tensors, which have no gradient yet.
    pub(crate) fn of(tensors: Vec<(String, Var)>) -> Self {
        OwnGradients(tensors.into_iter().map(|(_, var)| (var, None)).collect())
    }

    /// Adds the gradients of a pass.
    pub(crate) fn add(&mut self, gradients: &GradStore) -> Result<()> {
        for (var, sum) in &mut self.0 {
            let Some(gradient) = gradients.get(var) else { continue };
            *sum = Some(match sum.take() {
                Some(sum) => (sum + gradient)?,
                None => gradient.clone(),
            });
        }
        Ok(())
    }

    /// Moves the sums to the gradients of the optimizer.
    pub(crate) fn move_to(&mut self, gradients: &mut GradStore) {
        for (var, sum) in &mut self.0 {
            if let Some(sum) = sum.take() {
                gradients.insert(var, sum);
            }
        }
    }

    /// Clears the sums.
    pub(crate) fn clear(&mut self) {
        self.0.iter_mut().for_each(|(_, sum)| *sum = None);
    }
}
