//! Registered memory: buffers in shared memory that all ranks of the endpoint have mapped, so that a collective reads
//! them where they are.
//!
//! All ranks register together. Each makes its own region, hands its file to every peer, and maps theirs:
//!
//! ```text
//! rank → peer   index:u32 bytes:u64, whose first byte carries the region's file
//! ```
//!
//! Peers only ever read. When a rank's buffer and all its views are gone, the rank gives the memory back to the system,
//! whatever peers still have it mapped, and unmaps its own region and those of the peers: at once, and without a word to
//! anybody, as a collective needs a buffer of the same registration on every rank.

use super::bytes::SharedBytes;
use super::link;
use crate::error::{Error, Result};
use crate::memory::Registration;
use memmap2::{MmapRaw, UncheckedAdvice};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes of the words that announce a region.
pub(super) const REGION_HEADER: usize = 4 + 8;

/// One rank's registered memory, mapped here.
pub(super) struct Region {
    map: MmapRaw,
    /// Whether it is this rank's own.
    owned: bool,
}

impl Region {
    /// A new region of at least `bytes` bytes, zeroed.
    pub(super) fn create(bytes: usize) -> Result<(Arc<Self>, OwnedFd)> {
        // The system has no empty mappings.
        let bytes = bytes.max(1);
        let (file, map) = link::reserve(bytes, |file| link::map(file, 0, bytes))?;
        Ok((Arc::new(Region { map, owned: true }), file))
    }

    pub(super) fn map(file: &OwnedFd, bytes: usize) -> io::Result<Arc<Self>> {
        let bytes = bytes.max(1);
        link::check(file, bytes)?;
        Ok(Arc::new(Region { map: link::map(file, 0, bytes)?, owned: false }))
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Bytes `offset..offset + len`, for reading what a peer has in them; `None` outside the region.
    pub(super) fn bytes(&self, offset: usize, len: usize) -> Option<SharedBytes<'_>> {
        let end = offset.checked_add(len).filter(|end| *end <= self.map.len())?;
        debug_assert!(end >= offset);
        // SAFETY: within the mapping, which this process only reads. Its owner does not write these bytes while the
        // operation goes on that asks for them, as its views are lent to it; should it give up, it may.
        Some(unsafe { SharedBytes::new(self.map.as_ptr().add(offset), len) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: nobody in this process uses the memory any more. A peer that still reads it, for an operation that
            // this rank has withdrawn from, reads zeros.
            let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::Remove) };
        }
    }
}

/// One registration, as all ranks made it. It lives as long as this rank's buffer.
pub(super) struct Registered {
    _mine: Arc<Region>,
    /// By rank; this rank's own place is empty.
    theirs: Vec<Option<Arc<Region>>>,
}

/// All registrations of an endpoint. They are numbered alike on all ranks.
pub(super) struct Regions {
    endpoint: u64,
    /// Those whose buffers are gone are empty.
    entries: Vec<Weak<Registered>>,
}

impl Regions {
    pub(super) fn new() -> Self {
        static ENDPOINTS: AtomicU64 = AtomicU64::new(0);
        Regions { endpoint: ENDPOINTS.fetch_add(1, Ordering::Relaxed), entries: Vec::new() }
    }

    /// The number of the next registration.
    pub(super) fn next_index(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Notes what the ranks have registered: how this rank's buffer is marked, and what it has to keep.
    pub(super) fn insert(
        &mut self,
        mine: Arc<Region>,
        theirs: Vec<Option<Arc<Region>>>,
    ) -> (Registration, Arc<Registered>) {
        let registration = Registration { endpoint: self.endpoint, index: self.next_index() };
        let keeper = Arc::new(Registered { _mine: mine, theirs });
        self.entries.push(Arc::downgrade(&keeper));
        (registration, keeper)
    }

    /// Whether memory was registered with this endpoint.
    pub(super) fn contains(&self, registration: Option<Registration>) -> bool {
        registration.is_some_and(|registration| registration.endpoint == self.endpoint)
    }

    /// A peer's region of a registration, as long as this rank has its own.
    pub(super) fn of_peer(&self, peer: usize, index: u32) -> Option<Arc<Region>> {
        self.entries.get(index as usize)?.upgrade()?.theirs[peer].clone()
    }
}

/// What announces a region.
pub(super) fn region_header(index: u32, bytes: usize) -> [u8; REGION_HEADER] {
    let mut words = [0; REGION_HEADER];
    words[..4].copy_from_slice(&index.to_le_bytes());
    words[4..].copy_from_slice(&(bytes as u64).to_le_bytes());
    words
}

/// Compares what a peer announced with this rank's own words.
pub(super) fn check_header(
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
    let what = format!("ranks disagree: this rank makes {}, {peer} makes {}", say(mine), say(theirs));
    Err(Error::setup(what, "register buffers in the same order and of the same sizes on all ranks"))
}
