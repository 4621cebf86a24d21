//! Claims on directories: if two trainings use the same one, the second is refused, since each would delete the
//! checkpoints of the other, or mix them with its own.

use hexagram_logical::{Error, Result};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Directories that a training has claimed, until its engine is dropped or its process ends. Rank 0 claims for all.
#[derive(Default)]
pub(crate) struct Claims(Mutex<Vec<(PathBuf, File)>>);

impl Claims {
    /// Claims a directory, unless this training has done so already.
    ///
    /// # Errors
    /// [`Error::Usage`] if another training has claimed it.
    pub(crate) fn claim(&self, root: &Path) -> Result<()> {
        let mut claimed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if claimed.iter().any(|(other, _)| other == root) {
            return Ok(());
        }
        // If directories cannot be locked, as on some network file systems, the checkpoints of another training are
        // detected once they exist.
        let Ok(directory) = File::open(root) else { return Ok(()) };
        match directory.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let what = format!("another training saves in {} at this moment", root.display());
                Err(Error::usage(what, "use a separate directory for each training, or end the other one"))
            }
            Err(TryLockError::Error(_)) => Ok(()),
            Ok(()) => {
                claimed.push((root.to_owned(), directory));
                Ok(())
            }
        }
    }
}
