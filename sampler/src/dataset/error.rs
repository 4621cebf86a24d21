//! Errors of a dataset's files. Every message names the file, the place and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Cause of a sample that could not be loaded: any error.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Data that cannot be used.
#[derive(Clone)]
#[non_exhaustive]
pub enum DatasetError {
    /// A file could not be opened or read.
    Read {
        /// The file.
        path: PathBuf,
        /// The system's own words.
        cause: Arc<io::Error>,
    },

    /// A file holds something else than it should.
    Format {
        /// The file.
        path: PathBuf,
        /// Place in the file, with a colon in front: `:12` for line 12; empty for the whole.
        place: String,
        /// Description of what is wrong.
        what: String,
        /// Instruction that mends it.
        remedy: &'static str,
    },

    /// There is no such sample.
    OutOfRange {
        /// The sample asked for.
        index: usize,
        /// Number of samples.
        len: usize,
    },

    /// Datasets that cannot be put side by side.
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
            DatasetError::Read { path, cause } => write!(
                f,
                "cannot read {}: {cause}; check the path and that you may read the file",
                path.display()
            ),
            DatasetError::Format { path, place, what, remedy } => {
                write!(f, "{}{place}: {what}; {remedy}", path.display())
            }
            DatasetError::OutOfRange { index, len } => write!(
                f,
                "sample {index} does not exist among {len}; use a sampler made for this dataset's length"
            ),
            DatasetError::Unequal { one, other } => {
                write!(f, "{one} samples cannot be paired with {other}; make both datasets equally long")
            }
        }
    }
}

impl std::error::Error for DatasetError {}

impl fmt::Debug for DatasetError {
    /// Writes the text for people: it is what a `main` that returns an error prints.
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

    /// Returns `index`, if there is such a sample.
    pub(super) fn in_range(index: usize, len: usize) -> Result<usize, Self> {
        if index < len { Ok(index) } else { Err(DatasetError::OutOfRange { index, len }) }
    }
}
