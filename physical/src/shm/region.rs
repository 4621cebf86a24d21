//! Registered memory: buffers in shared memory that all ranks of the endpoint have mapped, so that a collective reads
//! them where they are.
//!
//! All ranks register together. Each makes its own region, hands its file to every peer, and maps theirs:
//!
//! ```text
//! rank → peer   index:u32 bytes:u64, whose first byte carries the region's file
//! ```
//!
//! Peers only ever read. A region is unmapped by its owner when the buffer and all its views are gone, and by a peer
//! at its next registration after its own buffer has gone; the system frees it after the last of them.

use super::bytes::SharedBytes;
use super::link;
use crate::error::{Error, Result};
use crate::memory::Registration;
use memmap2::MmapRaw;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes of the words that announce a region.
pub(super) const WORDS: usize = 4 + 8;

/// One rank's registered memory, mapped here.
pub(super) struct Region {
    map: MmapRaw,
}

impl Region {
    /// A new region of at least `bytes` bytes, zeroed.
    pub(super) fn create(bytes: usize) -> Result<(Arc<Self>, OwnedFd)> {
        // The system has no empty mappings.
        let bytes = bytes.max(1);
        let (file, map) = link::reserve(bytes, |file| link::map(file, 0, bytes))?;
        Ok((Arc::new(Region { map }), file))
    }

    pub(super) fn map(file: &OwnedFd, bytes: usize) -> io::Result<Arc<Self>> {
        let bytes = bytes.max(1);
        link::check(file, bytes)?;
        Ok(Arc::new(Region { map: link::map(file, 0, bytes)? }))
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

/// One registration, as all ranks made it.
struct Entry {
    mine: Weak<Region>,
    /// By rank; this rank's own place is empty.
    theirs: Vec<Option<Arc<Region>>>,
}

/// All registrations of an endpoint. They are numbered alike on all ranks.
pub(super) struct Regions {
    endpoint: u64,
    entries: Vec<Option<Entry>>,
}

impl Regions {
    pub(super) fn new() -> Self {
        static ENDPOINTS: AtomicU64 = AtomicU64::new(0);
        Regions { endpoint: ENDPOINTS.fetch_add(1, Ordering::Relaxed), entries: Vec::new() }
    }

    /// The number of the next registration.
    pub(super) fn next(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Keeps what the ranks have registered; how the own buffer is marked.
    pub(super) fn keep(&mut self, mine: &Arc<Region>, theirs: Vec<Option<Arc<Region>>>) -> Registration {
        for entry in &mut self.entries {
            if entry.as_ref().is_some_and(|entry| entry.mine.strong_count() == 0) {
                *entry = None;
            }
        }
        let registration = Registration { endpoint: self.endpoint, index: self.next() };
        self.entries.push(Some(Entry { mine: Arc::downgrade(mine), theirs }));
        registration
    }

    /// Whether memory was registered with this endpoint.
    pub(super) fn knows(&self, registration: Option<Registration>) -> bool {
        registration.is_some_and(|registration| registration.endpoint == self.endpoint)
    }

    /// A peer's region of a registration.
    pub(super) fn of(&self, peer: usize, index: u32) -> Option<&Arc<Region>> {
        self.entries.get(index as usize)?.as_ref()?.theirs[peer].as_ref()
    }
}

/// What announces a region.
pub(super) fn words(index: u32, bytes: usize) -> [u8; WORDS] {
    let mut words = [0; WORDS];
    words[..4].copy_from_slice(&index.to_le_bytes());
    words[4..].copy_from_slice(&(bytes as u64).to_le_bytes());
    words
}

/// Compares what a peer announced with this rank's own words.
pub(super) fn check(mine: [u8; WORDS], theirs: [u8; WORDS], peer: &dyn std::fmt::Display) -> Result<()> {
    if mine == theirs {
        return Ok(());
    }
    let say = |words: [u8; WORDS]| {
        let (mut index, mut bytes) = ([0; 4], [0; 8]);
        index.copy_from_slice(&words[..4]);
        bytes.copy_from_slice(&words[4..]);
        format!("registration {} of {} bytes", u32::from_le_bytes(index), u64::from_le_bytes(bytes))
    };
    let what = format!("ranks disagree: this rank makes {}, {peer} makes {}", say(mine), say(theirs));
    Err(Error::setup(what, "register buffers in the same order and of the same sizes on all ranks"))
}
