//! Reads whole files that users name: regular ones, up to a bound; and splits those with one statement per line. Use
//! it in every program that reads such files.
//!
//! The sampler, which depends on nothing, has a copy.

use crate::error::Error;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a file to read it.
///
/// # Errors
/// Those of the system. [`ErrorKind::InvalidInput`] for anything but a regular file, as a pipe without a writer would
/// block the program, and a device may have no end.
fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    let what = match (kind.is_dir(), kind.is_file()) {
        (_, true) => return File::open(path),
        (true, _) => "it is a folder, not a file",
        (false, _) => "it is a pipe or a device, not a regular file",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, what))
}

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// Those of the system. [`ErrorKind::InvalidInput`] for anything but a regular file. [`ErrorKind::FileTooLarge`], with
/// the bound, for a longer file. [`ErrorKind::OutOfMemory`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    if length <= most {
        bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
        // The file may grow after its length was read.
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    match length.max(bytes.len() as u64) {
        length if length > most => Err(too_long(length, most)),
        _ => Ok(bytes),
    }
}

/// Reads a text file, as [`read`] does.
///
/// # Errors
/// As [`read`]; [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Returns the statements of a text with their line numbers from 1, without empty lines and comments, which `#`
/// begins.
pub fn statements(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    (1..).zip(lines).filter(|(_, line)| !line.is_empty())
}

/// Returns the error with the number of its line.
pub fn in_line(line: usize, error: Error) -> Error {
    match error {
        Error::Usage { what, remedy } => Error::usage(format!("line {line}: {what}"), remedy),
        other => other,
    }
}

/// Creates the error of a file that is too long.
fn too_long(length: u64, most: u64) -> io::Error {
    let what = format!("it has {length} bytes; the maximum for this kind of file is {most}");
    io::Error::new(ErrorKind::FileTooLarge, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::random;

    #[test]
    fn comments_and_empty_lines_are_left_out_and_counted() {
        let found: Vec<(usize, &str)> = statements("# a\n one # b\n\n\ttwo\n#").collect();
        assert_eq!(found, [(2, "one"), (4, "two")]);
    }

    #[test]
    fn what_has_no_end_or_too_late_a_one_is_refused() {
        let name = format!("hexagram-input-{:016x}", u64::from_le_bytes(random().unwrap()));
        let path = std::env::temp_dir().join(name);
        fs::write(&path, b"12345").unwrap();
        let refused = |path: &Path, kind: ErrorKind, what: &str| {
            let error = read(path, 4).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, what));
        };
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        let long = "it has 5 bytes; the maximum for this kind of file is 4";
        refused(&path, ErrorKind::FileTooLarge, long);
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 4).unwrap_err().to_string(), "it is not UTF-8 text");
        fs::remove_file(&path).unwrap();
        let pipe = "it is a pipe or a device, not a regular file";
        refused(Path::new("/dev/zero"), ErrorKind::InvalidInput, pipe);
        refused(Path::new("/dev"), ErrorKind::InvalidInput, "it is a folder, not a file");
        // Nobody writes to it.
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        refused(&path, ErrorKind::InvalidInput, pipe);
        fs::remove_file(&path).unwrap();
        assert_eq!(read(&path, 4).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
