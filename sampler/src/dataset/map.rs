//! Files mapped into memory: the kernel reads only the pages that are accessed, and the processes of a machine share
//! them.

use super::DatasetError;
use crate::file;
use crate::loader::Element;
use memmap2::{Advice, Mmap};
use std::path::Path;

/// The bytes of a file, mapped read-only. Do not truncate the file while it is mapped: Linux would end the process
/// with SIGBUS.
pub(super) struct Map(Option<Mmap>);

impl Map {
    pub(super) fn open(path: &Path) -> Result<Self, DatasetError> {
        let refused = |cause| DatasetError::read(path, cause);
        // A device or a pipe has length 0, like an empty file.
        let file = file::open(path).map_err(refused)?;
        if file.metadata().map_err(refused)?.len() == 0 {
            return Ok(Map(None));
        }
        // SAFETY: the mapping is private to this type and read-only. If another process changes the file, it changes
        // numbers or letters, which are checked wherever their value matters. The documentation of every dataset that
        // maps a file forbids truncating it.
        let map = unsafe { Mmap::map(&file) }.map_err(refused)?;
        // Only advice: a kernel without support for it reads ahead as usual.
        let _ = map.advise(Advice::Random);
        Ok(Map(Some(map)))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<T: Element> AsRef<[T]> for Map {
    /// Returns the whole elements, in the byte order of the machine.
    fn as_ref(&self) -> &[T] {
        let whole = self.bytes().len() / size_of::<T>() * size_of::<T>();
        bytemuck::try_cast_slice(&self.bytes()[..whole]).unwrap_or_default()
    }
}
