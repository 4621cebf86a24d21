//! Files that users name: regular ones only, and whole ones only up to a bound.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a file to read it.
///
/// # Errors
///
/// Those of the system; [`ErrorKind::InvalidInput`] for anything but a regular file: a pipe without a writer would keep
/// the program waiting, and a device may have no end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    let what = match (kind.is_dir(), kind.is_file()) {
        (_, true) => return File::open(path),
        (true, _) => "it is a folder, not a file",
        (false, _) => "it is a pipe or a device, not a regular file",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, what))
}

/// Reads the whole of a file that has at most so many bytes.
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
        // What the length says may not be so a moment later.
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    let length = length.max(bytes.len() as u64);
    if length > most {
        let what = format!("it has {length} bytes, and at most {most} are read of such a file");
        return Err(io::Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}
