//! Files of options: their text, and errors with their name.

use hexagram::physical::input;
use hexagram::{Error, Result};
use std::path::Path;

/// Returns the text of a file.
pub(super) fn read(path: &Path, what: &str) -> Result<String> {
    input::read_text(path, 1 << 20).map_err(|cause| {
        Error::system(format!("read the {what} {}", path.display()), cause, "choose an existing file")
    })
}

/// Returns an error with the file's name in front.
pub(super) fn in_file(path: &Path, error: Error) -> Error {
    match error {
        Error::Usage { what, remedy } => Error::usage(format!("{}, {what}", path.display()), remedy),
        other => other,
    }
}
