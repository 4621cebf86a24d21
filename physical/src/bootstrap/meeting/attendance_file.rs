//! Flags of each rank of a machine, from the ranks to their launcher: rank 0 has registered it, and it has checkpoints.
//!
//! A registered rank has a connection to rank 0, whose end is the end of the rank. The end of any other rank can only be
//! reported by its launcher. A job that fails again and again without a new checkpoint is not worth a restart. The flags are
//! bytes of a memory file: one for each rank of the machine, then a second one for each. Ranks of other launchers have none.

use crate::bootstrap::variables::{Launcher, Placement};
use crate::system::environment::variable;
use crate::system::memory_file::memory_file;
use rustix::fs::ftruncate;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the variable that holds the file's descriptor.
pub const VARIABLE: &str = "HEXAGRAM_ATTENDANCE_FD";
/// Name of the memory file.
const NAME: &str = "hexagram-attendance";
/// Second flag of a rank that looks for checkpoints, or will save some.
const CHECKPOINTS: u8 = 1;
/// Second flag of a rank that has saved a checkpoint.
const SAVED: u8 = 2;

/// Launcher's side of the flags.
#[derive(Clone)]
pub struct RegisteredFlags {
    file: Arc<OwnedFd>,
    ranks: usize,
}

impl RegisteredFlags {
    /// Creates the flags of `ranks` ranks, all unset.
    pub fn open(ranks: usize) -> io::Result<Self> {
        let file = memory_file(NAME)?;
        ftruncate(&file, 2 * ranks as u64)?;
        Ok(RegisteredFlags { file: Arc::new(file), ranks })
    }

    /// Returns the file, which the ranks inherit.
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Returns true if rank 0 has registered the rank with this local number.
    pub fn is_registered(&self, local_rank: usize) -> bool {
        self.flag(local_rank) == 1
    }

    /// Returns true if a rank uses checkpoints.
    pub fn uses_checkpoints(&self) -> bool {
        (0..self.ranks).any(|rank| self.flag(self.ranks + rank) >= CHECKPOINTS)
    }

    /// Returns true if a rank has saved a checkpoint.
    pub fn has_saved(&self) -> bool {
        (0..self.ranks).any(|rank| self.flag(self.ranks + rank) == SAVED)
    }

    fn flag(&self, at: usize) -> u8 {
        let mut flag = [0];
        let read = rustix::io::pread(&*self.file, &mut flag, at as u64);
        read.map_or(0, |_| flag[0])
    }
}

/// Notifies the launcher of this process, if it is `hexagram run`, that this rank uses checkpoints, or has saved one. Without a
/// new checkpoint, the launcher starts a failing job only three times.
pub fn note_checkpoint(is_saved: bool) {
    static HAS_SAVED: AtomicBool = AtomicBool::new(false);
    let is_saved = HAS_SAVED.fetch_or(is_saved, Ordering::Relaxed) || is_saved;
    let number = |name| variable(name).and_then(|text: String| text.parse::<usize>().ok());
    let place = number("HEXAGRAM_LOCAL_SIZE").zip(number("HEXAGRAM_LOCAL_RANK"));
    if let Some((size, rank)) = place {
        set_flag(size + rank, if is_saved { SAVED } else { CHECKPOINTS });
    }
}

/// Updates the flag of this process, if its launcher reads flags.
pub(crate) fn set_registered(placement: &Placement, is_registered: bool) {
    if placement.launcher != Launcher::Hexagram {
        return;
    }
    set_flag(placement.local_rank, u8::from(is_registered));
}

/// Sets a byte of the launcher's file, if it has one.
fn set_flag(at: usize, value: u8) {
    let Some(number) = variable(VARIABLE).and_then(|text| text.parse::<u32>().ok()) else { return };
    // A wrapper may have closed the file, and opened a different file at that number.
    let path = format!("/proc/self/fd/{number}");
    let is_it =
        std::fs::read_link(&path).is_ok_and(|file| file == Path::new(&format!("/memfd:{NAME} (deleted)")));
    let file = is_it.then(|| File::options().write(true).open(&path));
    if let Some(Ok(file)) = file {
        // Without it, the launcher reports an end that rank 0 has already detected.
        let _ = file.write_at(&[value], at as u64);
    }
}
