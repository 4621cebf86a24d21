//! Rules by which gradients are clipped under an algorithm.

/// Gradients that [`EngineOptions::clip_norm`](crate::EngineOptions::clip_norm) bounds under an algorithm, with c as
/// that norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clipping {
    /// Gradients as the algorithm leaves them to the optimizer: g ← g · min(1, c / ‖g‖). Suitable if they are the mean
    /// gradient, or the gradients of this rank.
    #[default]
    Outcome,
    /// Gradients before the first hook, on all ranks by one factor: gᵢ ← gᵢ · min(1, c / √((1/n) Σⱼ ‖gⱼ‖²)). Suitable
    /// for an algorithm that keeps a part of its input in the state, or leaves a direction of a different length: one
    /// factor for all ranks is a shorter step to the same minimum. It loses the overlap with the backward pass, and
    /// costs an all-reduce of 8 bytes per step, so ranks must wait for each other.
    Together,
    /// No gradients, for the given reason: the engine refuses to clip.
    Refused(&'static str),
}
