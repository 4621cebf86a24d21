//! Stages of a step: the hooks of an algorithm, in the order in which they run.

/// Hook of a step, or the making of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Making of the state: one bucket after another, as it may open what has to be opened in one order on all ranks.
    Start,
    Forward,
    /// Gradients of a pass that is not the step's last.
    Evaluate,
    Gradients,
    Backward,
    Step,
    Settle,
}
