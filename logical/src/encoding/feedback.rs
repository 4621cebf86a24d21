//! Feedback: the treatment of the error of a codec. The table shows which primitives support which.

use crate::Result;
use crate::options_text::{Catalogues, Options, OptionsText, Values, above, one_of};
use std::fmt;

/// Treatment of the error of a codec.
///
/// With C the codec, p the numbers that a rank has to send, and c the message, as its receiver decodes it:
///
/// | feedback | message | stored | use |
/// |---|---|---|---|
/// | none | c = C(p) | – | unbiased codecs, and fine ones |
/// | error | c = C(p + e); e ← p + e − c | e, per rank (Seide et al. 2014) | centralized; DeepSqueeze |
/// | decaying error | e ← β e + p; c = C(e); e ← e − c | e, per rank (Sarfi et al. 2025) | as error |
/// | two-level | as error, and once more where chunks are re-encoded | e, and e of the own chunk (Tang et al. 2019) | scatter-gather |
/// | difference | c = C(p − h); h ← h + c | h, on both sides (DCD, CHOCO, EF21) | centralized and gossip |
/// | extrapolation | c = C((1 − t/2) pₜ + (t/2) pₜ₊₁) | estimates (ECD, Tang et al. 2018) | gossip |
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Feedback {
    /// The error is lost.
    #[default]
    None,
    /// The error is added to the next message.
    Error,
    /// This share β of the error is added to the next message, above 0 and at most 1: values that stay unsent decay,
    /// like a momentum. 1 is [`Feedback::Error`].
    Decaying(f64),
    /// The error is added to the next message, by workers and by the owner of each chunk.
    TwoLevel,
    /// Messages are differences from the estimates of the receivers.
    Difference,
    /// Messages are extrapolations, which the receivers average.
    Extrapolation,
}

impl fmt::Display for Feedback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feedback::None => "no feedback",
            Feedback::Error => "error feedback",
            Feedback::Decaying(share) => return write!(f, "error feedback that keeps {share}"),
            Feedback::TwoLevel => "two-level feedback",
            Feedback::Difference => "difference feedback",
            Feedback::Extrapolation => "extrapolation feedback",
        })
    }
}

impl Feedback {
    /// Returns the share of the error of a rank that is added to its next message; `None` if no error is stored.
    pub fn error_kept(self) -> Option<f64> {
        match self {
            Feedback::Error | Feedback::TwoLevel => Some(1.0),
            Feedback::Decaying(share) => Some(share),
            Feedback::None | Feedback::Difference | Feedback::Extrapolation => None,
        }
    }

    /// Checks the share of the error that is kept.
    ///
    /// # Errors
    /// As [`Options::check`].
    pub fn check(self) -> Result<()> {
        let mut share = self.error_kept().unwrap_or(1.0);
        Options::check(AnyFeedback::ERROR, |options| AnyFeedback::decay(&mut share, options))
    }

    /// Returns true if it is in `known`; a decaying one counts as error feedback.
    pub fn is_among(self, known: &[Feedback]) -> bool {
        known.contains(match &self {
            Feedback::Decaying(_) => &Feedback::Error,
            other => other,
        })
    }
}

/// Values of a feedback option: `none`, `error`, `error(decay=0.95)`, `two-level` or `difference`. Extrapolation has
/// no option, since its estimates belong to a single algorithm.
#[derive(Debug, Clone, Copy)]
pub struct AnyFeedback;

impl AnyFeedback {
    const ERROR: &str = "error";
    const OTHERS: [(&str, Feedback); 3] =
        [("none", Feedback::None), ("two-level", Feedback::TwoLevel), ("difference", Feedback::Difference)];

    fn decay(share: &mut f64, options: &mut Options) -> Result<()> {
        options.field("decay", share, above(0.0).up_to(1.0), "β, share of an error that is kept")
    }
}

impl Values<Feedback> for AnyFeedback {
    fn read(
        &self,
        spelling: &OptionsText,
        now: Option<&Feedback>,
        known: &Catalogues,
    ) -> Result<Option<Feedback>> {
        if spelling.name() != Self::ERROR {
            return one_of(&Self::OTHERS).read(spelling, now, known);
        }
        let mut share = 1.0;
        Options::read(spelling, known, |options| Self::decay(&mut share, options))?;
        Ok(Some(if share == 1.0 { Feedback::Error } else { Feedback::Decaying(share) }))
    }

    fn write(&self, value: &Feedback) -> OptionsText {
        match value {
            Feedback::Error => OptionsText::of(Self::ERROR),
            Feedback::Decaying(share) => {
                let mut share = *share;
                Options::write(Self::ERROR, |options| Self::decay(&mut share, options))
            }
            other => one_of(&Self::OTHERS).write(other),
        }
    }

    fn accepts(&self, value: &Feedback) -> Result<bool> {
        match value {
            Feedback::Error | Feedback::Decaying(_) => value.check().map(|()| true),
            other => one_of(&Self::OTHERS).accepts(other),
        }
    }

    fn describe(&self, known: &Catalogues) -> String {
        format!("{}(decay=1), or {}", Self::ERROR, one_of(&Self::OTHERS).describe(known))
    }
}
