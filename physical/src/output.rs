//! Files for people and tools, which appear whole or not at all. Open this when a program writes what it has found to where
//! a user says.
//!
//! Links stay, and what they lead to is replaced; a device or a pipe is written to.

use crate::bootstrap::random;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

/// Writes a file: what was there before is replaced in the end, when the disk has all of it.
///
/// # Errors
/// Those of `content` and of the system; then what was there before still is.
pub fn write(path: &Path, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let fill = |file: File| -> io::Result<File> {
        let mut out = BufWriter::new(file);
        content(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)
    };
    match Destination::of(path)? {
        Destination::Stream => fill(OpenOptions::new().write(true).open(path)?).map(drop),
        Destination::File(path) => {
            let (draft, file) = draft(&path)?;
            let written = fill(file).and_then(|file| {
                file.sync_all()?;
                fs::rename(&draft, path)
            });
            // The error is what counts.
            written.inspect_err(|_| drop(fs::remove_file(&draft)))
        }
    }
}

/// Fails if [`write()`] could not begin: before the work whose result is to be written.
///
/// # Errors
/// Those of the system.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match Destination::of(path)? {
        Destination::File(path) => fs::remove_file(draft(&path)?.0),
        // Opening a pipe would wait for its reader.
        Destination::Stream => Ok(()),
    }
}

/// Makes an empty file in which the successor of `path` is prepared, and opens it: next to it, so that a rename suffices,
/// under a name that nobody can foresee, as others may be able to put links into that folder.
///
/// # Errors
/// Those of the system.
pub fn draft(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}.draft", u64::from_le_bytes(random()?)));
    let draft = path.with_file_name(name);
    File::create_new(&draft).map(|file| (draft, file))
}

/// What a path leads to.
enum Destination {
    /// A file, there or not.
    File(PathBuf),
    /// Something that must be written to, not replaced: a device, a pipe.
    Stream,
}

impl Destination {
    fn of(path: &Path) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) if !there.is_file() => return Ok(Destination::Stream),
            Ok(_) => path.canonicalize()?,
            // A link to what is not there yet.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
                return Destination::of(&path.with_file_name(fs::read_link(path)?));
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(cause) => return Err(cause),
        };
        Ok(Destination::File(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_has_a_name_that_nobody_foresees_and_is_gone_in_the_end() {
        let number = u64::from_le_bytes(random().unwrap());
        let folder = std::env::temp_dir().join(format!("hexagram-output-{number:016x}"));
        fs::create_dir(&folder).unwrap();
        let there =
            || -> Vec<_> { fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
        let mut names = Vec::new();
        for _ in 0..2 {
            write(&folder.join("file"), |_| {
                names.push(there().into_iter().find(|name| name != "file").unwrap());
                Ok(())
            })
            .unwrap();
            assert_eq!(there(), ["file"]);
        }
        assert_ne!(names[0], names[1]);
        fs::remove_dir_all(folder).unwrap();
    }
}
