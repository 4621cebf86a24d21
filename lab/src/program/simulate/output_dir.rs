//! `--out`: files of a simulation in a folder.

use hexagram::physical::output;
use hexagram::{Error, Result};
use std::io::{self, Write};
use std::path::Path;

/// Makes the folder, before anything is simulated.
///
/// # Errors
/// [`Error::System`] if it cannot be made.
pub(super) fn prepare(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|cause| not_written(folder, cause))
}

/// Writes a file of the folder.
///
/// # Errors
/// [`Error::System`] if it cannot be written.
pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    output::write(&path, |out| out.write_all(text.as_bytes())).map_err(|cause| not_written(&path, cause))
}

fn not_written(path: &Path, cause: io::Error) -> Error {
    Error::system(
        format!("write {}", path.display()),
        cause,
        "choose a writable --out folder with free space",
    )
}
