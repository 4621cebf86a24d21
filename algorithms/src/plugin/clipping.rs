//! Rules by which gradients are clipped under an algorithm.

/// Gradients that [`EngineOptions::clip_norm`](crate::EngineOptions::clip_norm) bounds under an algorithm, c being that
/// norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clipping {
    /// Gradients as the algorithm leaves them to the optimizer: g ← g · min(1, c / ‖g‖). It is right where they are the
    /// mean gradient, or this rank's own.
    #[default]
    Outcome,
    /// Gradients before the first hook, on all ranks by one factor: gᵢ ← gᵢ · min(1, c / √((1/n) Σⱼ ‖gⱼ‖²)). It is
    /// right for an algorithm that remembers a part of what it is given, or leaves a direction that has another length:
    /// one factor for all is a shorter step to the same minimum. It gives up the overlap with the backward pass, and
    /// costs an all-reduce of 8 bytes a step, so that ranks must wait for each other.
    Together,
    /// No gradients, for this reason: the engine refuses to clip.
    Refused(&'static str),
}
