//! Log files: one for each stream of each rank, `rank-3.out` and `rank-3.err`, with the bytes that the rank wrote.
//!
//! Files are never overwritten. An existing file belongs to a different job, and this job is refused before any rank
//! starts.

use hexagram_physical::{Error, Result};
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Log of one stream of one rank.
pub(super) struct RankLog {
    /// Path of the file.
    path: PathBuf,
    /// The file. `None` once a write has failed.
    file: Option<File>,
}

impl RankLog {
    /// Creates the `folder`, and empty stdout and stderr files in it for each of `ranks`: all or none.
    ///
    /// # Errors
    /// [`Error::System`] if a file exists, or cannot be created.
    pub(super) fn create_all(folder: &Path, ranks: Range<usize>) -> Result<Vec<(RankLog, RankLog)>> {
        let failed = |what: &Path, cause: io::Error| {
            let remedy = match cause.kind() {
                io::ErrorKind::AlreadyExists if what != folder => {
                    "it belongs to a different job; use a separate folder for each job"
                }
                _ => "choose a writable folder",
            };
            Error::system(format!("make {}", what.display()), cause, remedy)
        };
        fs::create_dir_all(folder).map_err(|cause| failed(folder, cause))?;
        let mut logs = Vec::new();
        for path in ranks.flat_map(|rank| names(folder, rank)) {
            match File::create_new(&path) {
                Ok(file) => logs.push(RankLog { path, file: Some(file) }),
                Err(cause) => {
                    logs.iter().for_each(|log| drop(fs::remove_file(&log.path)));
                    return Err(failed(&path, cause));
                }
            }
        }
        let mut logs = logs.into_iter();
        Ok(std::iter::from_fn(|| logs.next().zip(logs.next())).collect())
    }

    /// Removes the files of a job that could not be started, so that the next attempt does not find them.
    pub(super) fn remove_all(folder: &Path, ranks: Range<usize>) {
        for path in ranks.flat_map(|rank| names(folder, rank)) {
            let _ = fs::remove_file(path);
        }
    }

    /// Appends bytes of the rank to the file. A full disk does not end a training: it is reported once, and the rest is
    /// lost.
    ///
    /// # Errors
    /// The first system error.
    pub(super) fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).inspect_err(|cause| {
            let path = self.path.display();
            let said = format!("hexagram: cannot write {path}: {cause}; the rest of it is lost\n");
            let _ = io::stderr().write_all(said.as_bytes());
            self.file = None;
        })
    }
}

/// Returns the paths of a rank's files.
fn names(folder: &Path, rank: usize) -> [PathBuf; 2] {
    [folder.join(format!("rank-{rank}.out")), folder.join(format!("rank-{rank}.err"))]
}
