//! Names of communicators.

/// Name of a future communicator: one rank draws it, and sends its bytes to all others.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId(pub(crate) [u8; Self::SIZE]);

// As a C compiler lays it out.
const _: () = assert!(size_of::<UniqueId>() == 128 && align_of::<UniqueId>() == 1);

impl UniqueId {
    /// Size of an id in bytes.
    pub const SIZE: usize = 128;

    /// Returns the id with these bytes, which another rank has sent. Invalid bytes are refused when ranks connect.
    pub const fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        UniqueId(bytes)
    }

    /// Returns the bytes to send to other ranks.
    pub const fn as_bytes(&self) -> &[u8; Self::SIZE] {
        &self.0
    }
}
