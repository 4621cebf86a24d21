//! Runs that are encoded in blocks: what a block's message consists of, and where it lies.
//!
//! `message = block₁ … block_b`, `block = header, codes`: a header of fixed size, then some bits for each number of the
//! block, filled up to a whole byte. All blocks but the last hold equally many numbers.

#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::CodecError;
use crate::spelling::{Options, or};
use hexagram_physical::Result;

/// Cut of a run into blocks, and size of one block's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks {
    /// Number of elements of a block; all of a run, if `None`.
    pub(super) size: Option<usize>,
    /// Size of a header, in bytes.
    pub(super) header: usize,
    /// Size of a number's code, in bits, at most 8.
    pub(super) bits: usize,
}

impl Blocks {
    /// Names the number of elements of a block among a codec's options.
    pub(super) fn field(&mut self, options: &mut Options, about: &'static str) -> Result<()> {
        options.field("block", &mut self.size, or("whole", 1..), about)
    }

    /// Returns the size of a run's message, in bytes; saturates where no memory could hold it.
    pub(super) fn encoded_len(self, len: usize) -> usize {
        let (size, block) = self.sizes(len);
        let full = len / size;
        let rest = len % size;
        full.saturating_mul(block).saturating_add(if rest > 0 { self.block_len(rest) } else { 0 })
    }

    /// Returns each block's numbers, header and codes; `to` holds [`Self::encoded_len`] bytes.
    pub(super) fn encode<'a>(self, from: &'a [f32], to: &'a mut [u8]) -> impl Iterator<Item = Encode<'a>> {
        let (size, block) = self.sizes(from.len());
        let to = &mut to[..self.encoded_len(from.len())];
        from.chunks(size).zip(to.chunks_mut(block)).map(move |(x, message)| {
            let (header, codes) = message.split_at_mut(self.header);
            (x, header, codes)
        })
    }

    /// Returns each block's header, codes and numbers.
    ///
    /// # Errors
    /// [`CodecError::Damaged`] if `from` has another size than the message of so many numbers.
    pub(super) fn decode<'a>(
        self,
        from: &'a [u8],
        to: &'a mut [f32],
    ) -> Result<impl Iterator<Item = Decode<'a>>, CodecError> {
        expect_len(from, self.encoded_len(to.len()), to)?;
        let (size, block) = self.sizes(to.len());
        Ok(from.chunks(block).zip(to.chunks_mut(size)).map(move |(message, x)| {
            let (header, codes) = message.split_at(self.header);
            (header, codes, x)
        }))
    }

    /// Returns the number of elements and the size in bytes of a full block, neither of which is 0.
    fn sizes(self, len: usize) -> (usize, usize) {
        let size = self.size.unwrap_or(len).max(1);
        (size, self.block_len(size))
    }

    fn block_len(self, len: usize) -> usize {
        self.header
            .saturating_add((len / 8).saturating_mul(self.bits))
            .saturating_add((len % 8 * self.bits).div_ceil(8))
    }
}

type Encode<'a> = (&'a [f32], &'a mut [u8], &'a mut [u8]);
type Decode<'a> = (&'a [u8], &'a [u8], &'a mut [f32]);

/// Returns the scale that is a block's whole header.
pub(super) fn read_scale(header: &[u8]) -> f32 {
    f32::from_le_bytes(bytemuck::pod_read_unaligned(header))
}

/// Fails unless the message is as long as a message for `to`.
///
/// # Errors
/// [`CodecError::Damaged`].
pub(super) fn expect_len(from: &[u8], expected: usize, to: &[f32]) -> Result<(), CodecError> {
    if from.len() == expected {
        return Ok(());
    }
    let what = format!("it has {} bytes, where {} numbers take {expected}", from.len(), to.len());
    Err(CodecError::damaged(what))
}
