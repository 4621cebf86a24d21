//! A flag for each rank of a machine, set once rank 0 has registered it: from the ranks to their launcher.
//!
//! A registered rank has a connection to rank 0, whose end is the end of the rank. The end of any other rank can only
//! be reported by its launcher. The flags are bytes of a memory file, one for each rank of the machine. Ranks of
//! other launchers have none.

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

/// Name of the variable that holds the file's descriptor.
pub const VARIABLE: &str = "HEXAGRAM_ATTENDANCE_FD";
/// Name of the memory file.
const NAME: &str = "hexagram-attendance";

/// Launcher's side of the flags.
#[derive(Clone)]
pub struct RegisteredFlags(Arc<OwnedFd>);

impl RegisteredFlags {
    /// Creates the flags of `ranks` ranks, all unset.
    pub fn open(ranks: usize) -> io::Result<Self> {
        let file = memory_file(NAME)?;
        ftruncate(&file, ranks as u64)?;
        Ok(RegisteredFlags(Arc::new(file)))
    }

    /// Returns the file, which the ranks inherit.
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    /// Returns true if rank 0 has registered the rank with this local number.
    pub fn is_registered(&self, local_rank: usize) -> bool {
        let mut flag = [0];
        let read = rustix::io::pread(&*self.0, &mut flag, local_rank as u64);
        read.is_ok_and(|bytes| bytes == 1) && flag == [1]
    }
}

/// Updates the flag of this process, if its launcher reads flags.
pub(crate) fn set_registered(placement: &Placement, is_registered: bool) {
    if placement.launcher != Launcher::Hexagram {
        return;
    }
    let Some(number) = variable(VARIABLE).and_then(|text| text.parse::<u32>().ok()) else { return };
    // A wrapper may have closed the file, and opened another one at that number.
    let path = format!("/proc/self/fd/{number}");
    let is_it =
        std::fs::read_link(&path).is_ok_and(|file| file == Path::new(&format!("/memfd:{NAME} (deleted)")));
    let file = is_it.then(|| File::options().write(true).open(&path));
    if let Some(Ok(file)) = file {
        // Without it, the launcher reports an end that rank 0 has already detected.
        let _ = file.write_at(&[u8::from(is_registered)], placement.local_rank as u64);
    }
}
