//! Writes files that appear as a whole or not at all. Use it whenever a program writes results to a path that a user
//! names.
//!
//! Links are kept, and their targets replaced. A device or a pipe is written to.

use crate::bootstrap::random;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

/// Writes a file. An existing one is replaced at the end, once the disk has all of it.
///
/// # Errors
/// Those of `content` and of the system. The existing file is then unchanged.
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
            // The error of the write takes precedence.
            written.inspect_err(|_| drop(fs::remove_file(&draft)))
        }
    }
}

/// Checks that [`write()`] could begin. Call this before the work that produces the output.
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

/// Creates an empty file that will replace `path`, and opens it. It is in the same folder, so that a rename suffices,
/// and has an unpredictable name, since other users may be able to create links in that folder.
///
/// # Errors
/// Those of the system.
pub fn draft(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}.draft", u64::from_le_bytes(random()?)));
    let draft = path.with_file_name(name);
    File::create_new(&draft).map(|file| (draft, file))
}

/// Destination of a path.
enum Destination {
    /// Regular file, which may not exist yet.
    File(PathBuf),
    /// Device or pipe, which must be written to rather than replaced.
    Stream,
}

impl Destination {
    /// Finds the destination of a path.
    fn of(path: &Path) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) if !there.is_file() => return Ok(Destination::Stream),
            Ok(_) => path.canonicalize()?,
            // A link whose target does not exist yet.
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
