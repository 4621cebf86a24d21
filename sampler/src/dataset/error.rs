//! Errors of dataset files. Every message names the file, the place, the cause and a remedy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Cause of a sample that could not be loaded: any error.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A dataset that cannot be used.
#[derive(Clone)]
#[non_exhaustive]
pub enum DatasetError {
    /// A file could not be opened or read.
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        cause: Arc<io::Error>,
    },

    /// A file has an invalid format.
    Format {
        /// The file.
        path: PathBuf,
        /// Place in the file, after a colon: `:12` for line 12; empty for the whole file.
        place: String,
        /// Description of the error.
        what: String,
        /// Remedy.
        remedy: &'static str,
    },

    /// A sample index is out of range.
    OutOfRange {
        /// The requested sample.
        index: usize,
        /// Number of samples.
        len: usize,
    },

    /// Datasets of different lengths in a [`Zip`](super::Zip).
    Unequal {
        /// Length of one dataset.
        one: usize,
        /// Length of the other.
        other: usize,
    },
}

impl fmt::Display for DatasetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatasetError::Read { path, cause } => {
                write!(f, "cannot read {}: {cause}; check the path and the permissions", path.display())
            }
            DatasetError::Format { path, place, what, remedy } => {
                write!(f, "{}{place}: {what}; {remedy}", path.display())
            }
            DatasetError::OutOfRange { index, len } => write!(
                f,
                "sample {index} does not exist among {len}; use a sampler for the length of this dataset"
            ),
            DatasetError::Unequal { one, other } => {
                write!(f, "{one} samples cannot be paired with {other}; use datasets of equal length")
            }
        }
    }
}

impl std::error::Error for DatasetError {}

impl fmt::Debug for DatasetError {
    /// Writes the message, as a `main` that returns an error prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl DatasetError {
    pub(super) fn read(path: &Path, cause: io::Error) -> Self {
        DatasetError::Read { path: path.into(), cause: Arc::new(cause) }
    }

    pub(super) fn format(path: &Path, what: impl Into<String>, remedy: &'static str) -> Self {
        DatasetError::Format { path: path.into(), place: String::new(), what: what.into(), remedy }
    }

    /// Returns `index` if it is below `len`.
    pub(super) fn in_range(index: usize, len: usize) -> Result<usize, Self> {
        if index < len { Ok(index) } else { Err(DatasetError::OutOfRange { index, len }) }
    }
}
