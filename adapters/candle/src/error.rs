//! Errors of candle and hexagram.

use hexagram_algorithms::logical;
use std::fmt;

/// Result of a function of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of hexagram or of candle.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Error of hexagram: communication, or a parameter without a gradient.
    #[error(transparent)]
    Hexagram(Box<logical::Error>),
    /// Error of candle: shapes, types, the model of the user.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl From<logical::Error> for Error {
    fn from(error: logical::Error) -> Self {
        Error::Hexagram(Box::new(error))
    }
}

impl fmt::Debug for Error {
    /// Writes the message: the output of a `main` that returns an error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        logical::Error::usage(what, remedy).into()
    }

    /// Returns the error for the other ranks when this one cannot continue.
    pub(crate) fn to_hexagram(&self) -> logical::Error {
        match self {
            Error::Hexagram(error) => (**error).clone(),
            Error::Candle(error) => {
                logical::Error::usage(format!("candle failed: {error}"), "see the error of that rank")
            }
        }
    }
}
