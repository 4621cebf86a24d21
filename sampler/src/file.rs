//! Files that users name: regular files only, and whole files only up to a bound.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a file for reading.
///
/// # Errors
///
/// The system errors; [`ErrorKind::InvalidInput`] if it is not a regular file: a pipe without a writer would block
/// the program, and a device may have no end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    let what = match (kind.is_dir(), kind.is_file()) {
        (_, true) => return File::open(path),
        (true, _) => "it is a folder, not a file",
        (false, _) => "it is a pipe or a device, not a regular file",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, what))
}

/// Reads a whole file of at most `most` bytes.
///
/// # Errors
///
/// As [`open`]; [`ErrorKind::FileTooLarge`], with the bound, for a longer file; [`ErrorKind::OutOfMemory`].
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    if length <= most {
        bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
        // The file may grow after its length was read.
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    let length = length.max(bytes.len() as u64);
    if length > most {
        let what = format!("it has {length} bytes; the maximum for this kind of file is {most}");
        return Err(io::Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}
