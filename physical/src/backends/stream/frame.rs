//! The frame header, encoded and decoded. Its grammar is in the module above.

use crate::memory::hash;
use crate::transport::fingerprint::{FINGERPRINT_BYTES, Fingerprint};
use crate::transport::tag::{TAG_BYTES, Tag};
use crate::transport::{HEADER_BYTES, Label};

const _: () = assert!(
    HEADER_BYTES == 8 + TAG_BYTES + FINGERPRINT_BYTES + 8,
    "every transport counts what a frame takes"
);

const MAGIC: u32 = u32::from_le_bytes(*b"HXGM");
/// Bytes that the checksum covers.
const CHECKED: usize = HEADER_BYTES - 8;
/// Longest payload in bytes: no memory holds more.
const LONGEST: u64 = isize::MAX as u64;

/// Header of a payload of `length` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) length: u64,
    pub(crate) label: Label,
}

impl Header {
    /// Encodes the header.
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..][..TAG_BYTES].copy_from_slice(&self.label.tag.to_bytes());
        bytes[8 + TAG_BYTES..][..FINGERPRINT_BYTES].copy_from_slice(&self.label.fingerprint.to_bytes());
        let check = checksum(&bytes[..CHECKED]);
        bytes[CHECKED..][..4].copy_from_slice(&check.to_le_bytes());
        bytes[CHECKED + 4..].copy_from_slice(&MAGIC.to_le_bytes());
        bytes
    }

    /// Decodes a header. Returns `None` if the bytes are damaged, or do not come from hexagram.
    pub(crate) fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (body, tail) = bytes.split_at(CHECKED);
        let (check, magic) = tail.split_at(4);
        if magic != MAGIC.to_le_bytes() || check != checksum(body).to_le_bytes() {
            return None;
        }
        let (length, rest) = body.split_first_chunk::<8>()?;
        let (tag, rest) = rest.split_first_chunk::<TAG_BYTES>()?;
        let fingerprint = Fingerprint::from_bytes(rest.first_chunk::<FINGERPRINT_BYTES>()?)?;
        let label = Label { tag: Tag::from_bytes(tag), fingerprint };
        let length = u64::from_le_bytes(*length);
        (length <= LONGEST).then_some(Header { length, label })
    }

    /// Corrects the checksum, and the constant parts of the header.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn fix_checksum(bytes: &mut [u8; HEADER_BYTES]) {
        let check = checksum(&bytes[..CHECKED]);
        bytes[CHECKED..][..4].copy_from_slice(&check.to_le_bytes());
        bytes[CHECKED + 4..].copy_from_slice(&MAGIC.to_le_bytes());
    }
}

/// Hashes bytes by FNV-1a over 64-bit words, folded. It finds damage and proves nothing about the sender.
fn checksum(bytes: &[u8]) -> u32 {
    let mut hash = hash::START;
    for word in bytes.chunks_exact(8) {
        let word = word.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        hash = hash::step(hash, word);
        hash ^= hash >> 29;
    }
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::dtype::DType;
    use crate::transport::fingerprint::OperationKind;

    fn header() -> Header {
        let fingerprint = Fingerprint::new(OperationKind::Gather, DType::F64, 77);
        Header { length: 616, label: Label { tag: Tag::new(1, 2, 3, 4).unwrap(), fingerprint } }
    }

    #[test]
    fn bytes_round_trip() {
        assert_eq!(Header::from_bytes(&header().to_bytes()), Some(header()));
    }

    #[test]
    fn a_length_that_no_memory_holds_is_refused() {
        let beyond = Header { length: LONGEST + 1, ..header() };
        assert_eq!(Header::from_bytes(&beyond.to_bytes()), None);
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = header().to_bytes();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::from_bytes(&bad), None, "bit {bit}");
        }
    }
}
