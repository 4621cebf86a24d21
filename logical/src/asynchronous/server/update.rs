//! Updates of the parameters of a server: the mathematics of an asynchronous algorithm, on the rank of the shard.

use std::ops::Range;

/// Origin of a delta: its rank, its clock, and its range of parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Rank that sent it.
    pub from: usize,
    /// Clock of that rank when it sent it.
    pub clock: u64,
    /// Elements of the whole vector that it changes.
    pub range: Range<usize>,
}

/// Rule that applies a delta to parameters. It may keep state, such as a momentum, for its shard. Closures are
/// updates: `|parameters, delta, push| …`.
pub trait Update: Send {
    /// Changes `parameters`, the elements [`Push::range`], by `delta` of the same length.
    fn apply(&mut self, parameters: &mut [f32], delta: &[f32], push: &Push);
}

impl<F: FnMut(&mut [f32], &[f32], &Push) + Send> Update for F {
    fn apply(&mut self, parameters: &mut [f32], delta: &[f32], push: &Push) {
        self(parameters, delta, push);
    }
}

/// Adds the delta: `x ← x + d`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Add;

impl Update for Add {
    fn apply(&mut self, parameters: &mut [f32], delta: &[f32], _: &Push) {
        parameters.iter_mut().zip(delta).for_each(|(x, d)| *x += d);
    }
}

/// Gradient descent, one step per gradient: `x ← x − γ d`. For a step with the mean gradient of n ranks, set γ ÷ n.
#[derive(Debug, Clone, Copy)]
pub struct SgdUpdate {
    /// Learning rate γ.
    pub rate: f32,
}

impl Update for SgdUpdate {
    fn apply(&mut self, parameters: &mut [f32], delta: &[f32], _: &Push) {
        parameters.iter_mut().zip(delta).for_each(|(x, d)| *x -= self.rate * d);
    }
}
