//! Updates of a server's parameters: the mathematics of an asynchronous algorithm, on the shard's own rank.

use std::ops::Range;

/// Origin of a delta: its rank, its clock, and the parameters that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Rank that sent it.
    pub from: usize,
    /// Clock of that rank when it sent it.
    pub clock: u64,
    /// Elements of the whole vector that it changes.
    pub range: Range<usize>,
}

/// Changes parameters by what a rank has sent. It may keep state, such as a momentum, for the shard that it is given
/// parts of. Closures are updates too: `|parameters, delta, push| …`.
pub trait Update: Send {
    /// Changes `parameters`, the elements [`Push::range`], by `delta`, which is as long.
    fn apply(&mut self, parameters: &mut [f32], delta: &[f32], push: &Push);
}

impl<F: FnMut(&mut [f32], &[f32], &Push) + Send> Update for F {
    fn apply(&mut self, parameters: &mut [f32], delta: &[f32], push: &Push) {
        self(parameters, delta, push);
    }
}

/// Addition of what is sent: `x ← x + d`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Add;

impl Update for Add {
    fn apply(&mut self, parameters: &mut [f32], delta: &[f32], _: &Push) {
        parameters.iter_mut().zip(delta).for_each(|(x, d)| *x += d);
    }
}

/// Gradient descent, a step for every gradient that comes: `x ← x − γ d`. For a step by the mean of n ranks' gradients,
/// give it γ ÷ n.
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
