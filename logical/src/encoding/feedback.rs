//! Feedback: what becomes of the error that a codec makes. The table says which primitive takes which.

use std::fmt;

/// Treatment of a codec's error.
///
/// With C the codec, p the numbers that a rank has to send, and c the message, as its receiver decodes it:
///
/// | feedback | message | remembered | for |
/// |---|---|---|---|
/// | none | c = C(p) | – | unbiased codecs, and those that are fine enough |
/// | error | c = C(p + e); e ← p + e − c | e, per rank (Seide et al. 2014) | centralized; DeepSqueeze |
/// | two-level | as error, and once more where chunks are re-encoded | e, and e of the own chunk (Tang et al. 2019) | scatter-gather |
/// | difference | c = C(p − h); h ← h + c | h, on both sides (DCD, CHOCO, EF21) | centralized and gossip |
/// | extrapolation | c = C((1 − t/2) pₜ + (t/2) pₜ₊₁) | estimates (ECD, Tang et al. 2018) | gossip |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Feedback {
    /// The error is lost.
    #[default]
    None,
    /// The error is added to the next message.
    Error,
    /// The error is added to the next message, by workers and by the owner of each chunk.
    TwoLevel,
    /// Messages are differences from what the receivers have.
    Difference,
    /// Messages are extrapolations, which the receivers average.
    Extrapolation,
}

impl fmt::Display for Feedback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feedback::None => "no feedback",
            Feedback::Error => "error feedback",
            Feedback::TwoLevel => "two-level feedback",
            Feedback::Difference => "difference feedback",
            Feedback::Extrapolation => "extrapolation feedback",
        })
    }
}
