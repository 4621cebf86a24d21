//! Which ranks of one machine rank 0 knows: a flag from each rank to its launcher. Open this file to see when a launcher
//! tells rank 0 that a rank has ended, and when it leaves that to rank 0 itself.
//!
//! A rank that rank 0 knows has a connection there, whose end is the end of the rank. Of any other only its launcher
//! learns that it has ended. The flag is a file of memory, with a byte for each rank of the machine; ranks that another
//! launcher started have none.

use super::variables::{Launcher, Placement, variable};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The variable with the file's descriptor.
pub(crate) const VARIABLE: &str = "HEXAGRAM_ATTENDANCE_FD";
const NAME: &str = "hexagram-attendance";

/// What a launcher reads.
#[derive(Clone)]
pub(crate) struct RegisteredFlags(Arc<OwnedFd>);

impl RegisteredFlags {
    /// Nobody is known yet of so many `ranks`.
    pub(crate) fn open(ranks: usize) -> io::Result<Self> {
        let file = memfd_create(NAME, MemfdFlags::CLOEXEC)?;
        ftruncate(&file, ranks as u64)?;
        Ok(RegisteredFlags(Arc::new(file)))
    }

    /// The file, which the ranks inherit.
    pub(crate) fn file(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    /// Whether rank 0 knows the rank of this local number.
    pub(crate) fn is_registered(&self, local_rank: usize) -> bool {
        let mut flag = [0];
        let read = rustix::io::pread(&*self.0, &mut flag, local_rank as u64);
        read.is_ok_and(|bytes| bytes == 1) && flag == [1]
    }
}

/// Notes whether rank 0 knows this process, where its launcher wants to know.
pub(crate) fn set_registered(placement: &Placement, is_registered: bool) {
    if placement.launcher != Launcher::Hexagram {
        return;
    }
    let Some(number) = variable(VARIABLE).and_then(|text| text.parse::<u32>().ok()) else { return };
    // A wrapper may have closed the file, and opened another at that number.
    let path = format!("/proc/self/fd/{number}");
    let is_it =
        std::fs::read_link(&path).is_ok_and(|file| file == Path::new(&format!("/memfd:{NAME} (deleted)")));
    let file = is_it.then(|| File::options().write(true).open(&path));
    if let Some(Ok(file)) = file {
        // Without it the launcher says what rank 0 knows already.
        let _ = file.write_at(&[u8::from(is_registered)], placement.local_rank as u64);
    }
}
