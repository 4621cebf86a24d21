//! Registered memory: buffers in shared memory that all ranks of the endpoint have mapped, so that a collective reads
//! them in place.
//!
//! All ranks register together. Each creates its own region, sends its file to every peer, and maps theirs:
//!
//! ```text
//! rank → peer   index:u32 bytes:u64, whose first byte carries the region's file, if the rank has one
//! ```
//!
//! A rank with device memory has none; then all ranks use ordinary memory.
//!
//! Peers only read. When the buffer of a rank and all its views are dropped, the rank returns the memory to the
//! kernel, even if peers still have it mapped, and unmaps its own region and those of the peers. This needs no
//! message, since a collective needs a buffer of the same registration on every rank.

use crate::backends::shm::bytes::SharedBytes;
use crate::backends::shm::segment;
use crate::error::{Error, Result};
use crate::memory::Registration;
use memmap2::{MmapRaw, UncheckedAdvice};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes that announce a region.
pub(crate) const REGION_HEADER: usize = 4 + 8;

/// Registered memory of one rank, mapped.
pub(crate) struct Region {
    map: MmapRaw,
    /// True if the memory belongs to this rank.
    owned: bool,
}

impl Region {
    /// Creates a region of at least `bytes` bytes, zeroed, and the file that peers map.
    pub(crate) fn create(bytes: usize) -> Result<(Arc<Self>, OwnedFd)> {
        // The kernel has no empty mappings.
        let bytes = bytes.max(1);
        let (file, map) = segment::reserve(bytes, |file| segment::map(file, 0, bytes))?;
        Ok((Arc::new(Region { map, owned: true }), file))
    }

    /// Maps the region of a peer.
    pub(crate) fn map(file: &OwnedFd, bytes: usize) -> io::Result<Arc<Self>> {
        let bytes = bytes.max(1);
        segment::check(file, bytes)?;
        Ok(Arc::new(Region { map: segment::map(file, 0, bytes)?, owned: false }))
    }

    /// Returns the address of the memory.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Returns bytes `offset..offset + len`, for reading data of a peer, or `None` if they are outside the region.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Option<SharedBytes<'_>> {
        let end = offset.checked_add(len).filter(|end| *end <= self.map.len())?;
        debug_assert!(end >= offset);
        // SAFETY: within the mapping, which this process only reads. Its owner does not write these bytes while the
        // operation runs that reads them, since its views are lent to it; after abandoning it, it may.
        Some(unsafe { SharedBytes::new(self.map.as_ptr().add(offset), len) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: no code in this process uses the memory any more. A peer that still reads it, for an operation
            // from which this rank has withdrawn, reads zeros.
            let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::Remove) };
        }
    }
}

/// One registration of all ranks. It lives as long as the buffer of this rank.
pub(crate) struct Registered {
    _mine: Arc<Region>,
    /// Regions of the peers by rank; that of this rank is empty.
    theirs: Vec<Option<Arc<Region>>>,
}

/// All registrations of an endpoint. They have equal numbers on all ranks.
pub(crate) struct Regions {
    endpoint: u64,
    /// Registrations by number. Those whose buffers were dropped are empty.
    entries: Vec<Weak<Registered>>,
}

impl Regions {
    /// Creates the registrations of a new endpoint.
    pub(crate) fn new() -> Self {
        static ENDPOINTS: AtomicU64 = AtomicU64::new(0);
        Regions { endpoint: ENDPOINTS.fetch_add(1, Ordering::Relaxed), entries: Vec::new() }
    }

    /// Returns the number of the next registration.
    pub(crate) fn next_index(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Adds a registration of all ranks. Returns the mark for the buffer of this rank, and the value that the buffer
    /// must keep alive.
    pub(crate) fn insert(
        &mut self,
        mine: Arc<Region>,
        theirs: Vec<Option<Arc<Region>>>,
    ) -> (Registration, Arc<Registered>) {
        let registration = Registration { endpoint: self.endpoint, index: self.next_index() };
        let keeper = Arc::new(Registered { _mine: mine, theirs });
        self.entries.push(Arc::downgrade(&keeper));
        (registration, keeper)
    }

    /// Returns true if memory was registered with this endpoint.
    pub(crate) fn contains(&self, registration: Option<Registration>) -> bool {
        registration.is_some_and(|registration| registration.endpoint == self.endpoint)
    }

    /// Returns a peer's region of a registration, while this rank has its own.
    pub(crate) fn of_peer(&self, peer: usize, index: u32) -> Option<Arc<Region>> {
        self.entries.get(index as usize)?.upgrade()?.theirs[peer].clone()
    }
}

/// Encodes the announcement of a region.
pub(crate) fn region_header(index: u32, bytes: usize) -> [u8; REGION_HEADER] {
    let mut words = [0; REGION_HEADER];
    words[..4].copy_from_slice(&index.to_le_bytes());
    words[4..].copy_from_slice(&(bytes as u64).to_le_bytes());
    words
}

/// Compares the announcement of a peer with that of this rank.
pub(crate) fn check_header(
    mine: [u8; REGION_HEADER],
    theirs: [u8; REGION_HEADER],
    peer: &dyn std::fmt::Display,
) -> Result<()> {
    if mine == theirs {
        return Ok(());
    }
    let say = |words: [u8; REGION_HEADER]| {
        let mut index = [0; 4];
        let mut bytes = [0; 8];
        index.copy_from_slice(&words[..4]);
        bytes.copy_from_slice(&words[4..]);
        format!("registration {} of {} bytes", u32::from_le_bytes(index), u64::from_le_bytes(bytes))
    };
    let what = format!("ranks disagree: this rank registers {}, {peer} registers {}", say(mine), say(theirs));
    Err(Error::setup(what, "register buffers in the same order and of the same sizes on all ranks"))
}
