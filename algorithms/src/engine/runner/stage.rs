//! Stages of a step: the hooks of an algorithm, in the order in which they run.

/// Hook of a step, or the creation of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HookStage {
    /// Creation of the state: one bucket after another, as it may open channels in the same order on all ranks.
    Start,
    Forward,
    /// Gradients of a pass that is not the last of the step.
    Evaluate,
    Gradients,
    Backward,
    Step,
    Settle,
}
