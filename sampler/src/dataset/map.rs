//! Files as memory: the kernel reads what is touched, and several processes on one machine share the pages.

use super::DatasetError;
use crate::file;
use crate::loader::Element;
use memmap2::{Advice, Mmap};
use std::path::Path;

/// A file's bytes, mapped read-only. The file must not be cut short while it is mapped: Linux then ends the process
/// with SIGBUS.
pub(super) struct Map(Option<Mmap>);

impl Map {
    pub(super) fn open(path: &Path) -> Result<Self, DatasetError> {
        let refused = |cause| DatasetError::read(path, cause);
        // The length of a device or a pipe is 0, as if it were empty.
        let file = file::open(path).map_err(refused)?;
        if file.metadata().map_err(refused)?.len() == 0 {
            return Ok(Map(None));
        }
        // SAFETY: the mapping is private to this type and read-only. Another process that changes the file changes
        // numbers or letters that are checked wherever their value matters; that it must not cut the file short is
        // said in the documentation of every dataset that maps one.
        let map = unsafe { Mmap::map(&file) }.map_err(refused)?;
        // Only advice: a kernel that does not know it reads ahead as usual.
        let _ = map.advise(Advice::Random);
        Ok(Map(Some(map)))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<T: Element> AsRef<[T]> for Map {
    /// Returns as many whole elements as there are, in the machine's byte order.
    fn as_ref(&self) -> &[T] {
        let whole = self.bytes().len() / size_of::<T>() * size_of::<T>();
        bytemuck::try_cast_slice(&self.bytes()[..whole]).unwrap_or_default()
    }
}
