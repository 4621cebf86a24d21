//! Names of communicators.

use crate::error::Result;
use crate::library::functions;

/// Name of a communicator that is to be: one rank draws it, and all others are told its bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::SIZE]);

// As a C compiler lays it out.
const _: () = assert!(size_of::<UniqueId>() == 128 && align_of::<UniqueId>() == 1);

impl UniqueId {
    /// Size of an id in bytes.
    pub const SIZE: usize = 128;

    /// Draws a new id. The process that has drawn it serves the ranks while they connect, and has to live that long.
    ///
    /// # Errors
    /// Those of [`version`](crate::version) without a fitting NCCL;
    /// [`Error::Refused`](crate::Error::Refused) if the machine has no network interface that NCCL can use.
    pub fn new() -> Result<Self> {
        let nccl = functions()?;
        let mut id = UniqueId([0; Self::SIZE]);
        // SAFETY: the place is there for one id.
        let status = unsafe { (nccl.ncclGetUniqueId)(&mut id) };
        nccl.expect(status)?;
        Ok(id)
    }

    /// Returns the id with these bytes, which another rank has sent. Bytes that are no id are refused when ranks connect.
    pub const fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        UniqueId(bytes)
    }

    /// Returns the bytes to send to other ranks.
    pub const fn as_bytes(&self) -> &[u8; Self::SIZE] {
        &self.0
    }
}
