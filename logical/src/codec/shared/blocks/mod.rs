//! Codecs that encode in blocks: the layout of the message of a block.
//!
//! `message = block₁ … block_b`, `block = header, codes`: a header of fixed size, then a fixed number of bits per
//! number of the block, padded to a whole byte. All blocks except the last have the same number of numbers.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use super::fields::not_finite_field;
use super::not_finite::refuse;
use crate::codec::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::options_text::{NamedOptions, Options, or};
use hexagram_physical::Result;
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::Program;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

/// Codec that encodes a run in independent blocks of one format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCodec<F> {
    size: Option<usize>,
    not_finite: NotFinite,
    format: PhantomData<F>,
}

/// Format of a block: the sizes of its header and codes, and the encoding of its numbers.
///
/// Every method receives one block. Its codes have [`Format::BITS`] bits for each number, rounded up to a whole byte; the
/// format defines their order. The last block of a run may be shorter.
pub trait Format: Debug + Copy + Eq + Send + Sync + 'static {
    /// Name of the codec.
    const NAME: &'static str;
    /// Size of a header, in bytes.
    const HEADER: usize;
    /// Size of a number's code, in bits, at most 8.
    const BITS: usize;
    /// Number of elements of a block by default.
    const BLOCK: usize;
    /// Description of the option `block`.
    const ABOUT: &'static str = "elements that share a scale";
    /// Kernels of the same format for a GPU. With `None`, the default, the host encodes and decodes.
    #[cfg(feature = "cuda")]
    const KERNELS: Option<&'static cuda::Kernels> = None;

    /// Returns [`Properties::contraction`] for blocks of this size. 0 or less means that no bound is known.
    fn contraction(size: usize) -> f64;

    /// Encodes a block of any length up to the whole run. With [`NotFinite::Refuse`], returns `None` for a block that is
    /// not finite.
    fn encode(not_finite: NotFinite, x: &[f32], header: &mut [u8], codes: &mut [u8]) -> Option<()>;

    /// Adds the numbers of a block, times a weight.
    fn decode_add(header: &[u8], codes: &[u8], weight: f32, x: &mut [f32]);

    /// Writes the numbers of a block.
    fn decode(header: &[u8], codes: &[u8], x: &mut [f32]) {
        x.fill(0.0);
        Self::decode_add(header, codes, 1.0, x);
    }
}

impl<F: Format> Default for BlockCodec<F> {
    /// Returns the codec with blocks of the default size.
    fn default() -> Self {
        Self::in_blocks(F::BLOCK)
    }
}

impl<F: Format> BlockCodec<F> {
    /// Creates a codec with one header for every `size` numbers, at least 1.
    pub fn in_blocks(size: usize) -> Self {
        BlockCodec { size: Some(size), not_finite: NotFinite::Refuse, format: PhantomData }
    }

    /// Creates a codec with one header for all numbers of a run: two passes over memory.
    pub fn whole() -> Self {
        BlockCodec { size: None, ..Self::default() }
    }

    /// Sets the treatment of NaN and infinity. The module of the codec describes how they propagate.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        BlockCodec { not_finite, ..self }
    }

    fn blocks(&self) -> BlockLayout {
        BlockLayout { size: self.size, header: F::HEADER, bits: F::BITS }
    }
}

impl<F: Format> NamedOptions for BlockCodec<F> {
    fn keyword(&self) -> &'static str {
        F::NAME
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("block", &mut self.size, or("whole", 1..), F::ABOUT)?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl<F: Format> Codec for BlockCodec<F> {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    fn properties(&self) -> Properties {
        let contraction = self.size.map(F::contraction).filter(|delta| *delta > 0.0);
        Properties { unbiased: false, contraction, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        self.blocks().encoded_len(len)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(*self))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        for (x, header, codes) in self.blocks().encode(from, to) {
            F::encode(self.not_finite, x, header, codes).ok_or_else(|| refuse(from, 0, f32::is_finite))?;
        }
        Ok(self.encoded_len(from.len()))
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        let blocks = self.blocks().decode(from, to)?;
        blocks.for_each(|(header, codes, x)| F::decode_add(header, codes, weight, x));
        Ok(())
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        self.blocks().decode(from, to)?.for_each(|(header, codes, x)| F::decode(header, codes, x));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        F::KERNELS.map(|kernels| kernels.encode(self.size, len, self.not_finite))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        F::KERNELS.map(|kernels| kernels.decode(self.size, len, weight))
    }
}

/// Division of a run into blocks, and size of the message of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockLayout {
    /// Number of elements of a block; the whole run, if `None`.
    size: Option<usize>,
    /// Size of a header, in bytes.
    header: usize,
    /// Size of a number's code, in bits, at most 8.
    bits: usize,
}

impl BlockLayout {
    /// Returns the size of the message of a run, in bytes; saturates at sizes that no memory can hold.
    fn encoded_len(self, len: usize) -> usize {
        let (size, block) = self.sizes(len);
        let full = len / size;
        let rest = len % size;
        full.saturating_mul(block).saturating_add(if rest > 0 { self.block_len(rest) } else { 0 })
    }

    /// Returns the numbers, header and codes of each block; `to` holds [`Self::encoded_len`] bytes.
    fn encode<'a>(self, from: &'a [f32], to: &'a mut [u8]) -> impl Iterator<Item = Encode<'a>> {
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
    /// [`CodecError::Damaged`] if the size of `from` is not that of the message for `len` numbers.
    fn decode<'a>(
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

/// Returns the scale that is the whole header of a block.
pub(crate) fn read_scale(header: &[u8]) -> f32 {
    f32::from_le_bytes(bytemuck::pod_read_unaligned(header))
}

/// Fails unless the message is as long as a message for `to`.
///
/// # Errors
/// [`CodecError::Damaged`].
pub(crate) fn expect_len(from: &[u8], expected: usize, to: &[f32]) -> Result<(), CodecError> {
    if from.len() == expected {
        return Ok(());
    }
    let what = format!("it has {} bytes, where {} numbers take {expected}", from.len(), to.len());
    Err(CodecError::damaged(what))
}
