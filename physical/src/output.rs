//! Files for people and tools, which appear whole or not at all. Open this when a program writes what it has found to where
//! a user says.
//!
//! Links stay, and what they lead to is replaced; a device or a pipe is written to.

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
    match Target::of(path)? {
        Target::Stream => fill(OpenOptions::new().write(true).open(path)?).map(drop),
        Target::File { path, draft } => {
            let written = File::create(&draft).and_then(|file| {
                fill(file)?.sync_all()?;
                fs::rename(&draft, path)
            });
            // The error is what counts; the draft may not even be there.
            written.inspect_err(|_| drop(fs::remove_file(&draft)))
        }
    }
}

/// Fails if [`write()`] could not begin: before the work whose result is to be written.
///
/// # Errors
/// Those of the system.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match Target::of(path)? {
        Target::File { draft, .. } => File::create(&draft).and_then(|_| fs::remove_file(&draft)),
        // Opening a pipe would wait for its reader.
        Target::Stream => Ok(()),
    }
}

/// What a path leads to.
enum Target {
    /// A file, there or not, and where its successor is prepared: next to it, so that a rename suffices.
    File { path: PathBuf, draft: PathBuf },
    /// Something that must be written to, not replaced: a device, a pipe.
    Stream,
}

impl Target {
    fn of(path: &Path) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) if !there.is_file() => return Ok(Target::Stream),
            Ok(_) => path.canonicalize()?,
            // A link to what is not there yet.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
                return Target::of(&path.with_file_name(fs::read_link(path)?));
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(cause) => return Err(cause),
        };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.draft", std::process::id()));
        Ok(Target::File { draft: path.with_file_name(name), path })
    }
}
