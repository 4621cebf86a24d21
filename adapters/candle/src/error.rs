//! Errors between candle and hexagram.

use hexagram_algorithms::logical;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of either side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// From hexagram: communication, or a parameter without gradient.
    #[error(transparent)]
    Hexagram(#[from] logical::Error),
    /// From candle: shapes, types, the user's model.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    pub(crate) fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Hexagram(logical::Error::usage(what, remedy))
    }

    /// Returns what the other ranks are told when this one cannot go on.
    pub(crate) fn to_hexagram(&self) -> logical::Error {
        match self {
            Error::Hexagram(error) => error.clone(),
            Error::Candle(error) => {
                logical::Error::usage(format!("candle failed: {error}"), "see this rank's own error")
            }
        }
    }
}
