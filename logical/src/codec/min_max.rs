//! Eight bits for each number, relative to the range of its block.
//!
//! `code = round(255 (x − min) / (max − min))`, `x̂ = min + (code / 255)(max − min)`
//!
//! `block = min: f32, max: f32, code₁ … code_B: u8`, little endian; `message = block₁ … block_b`: d + 8⌈d/B⌉ bytes.
//!
//! The error of a number is at most (max − min)/510 and some roundings, however near to each other, small or large the
//! numbers are; equal numbers are exact. The larger a block, the more one outlier costs the others.

use super::blocks::Blocks;
#[cfg(feature = "cuda")]
use super::blocks::cuda;
use super::named::not_finite_field;
use super::not_finite::{PIECE, refuse, saturated_pieces};
use super::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::spelling::{Options, Spelled};
use hexagram_physical::Result;
use hexagram_physical::device::kernels::{self, Range};
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::Program;
use std::sync::Arc;

/// Codec of eight bits for each number, relative to the range of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinMax8 {
    blocks: Blocks,
    not_finite: NotFinite,
}

impl Default for MinMax8 {
    /// Returns the codec in blocks of 2048, which are encoded in one pass over memory.
    fn default() -> Self {
        Self::in_blocks(PIECE)
    }
}

impl MinMax8 {
    /// Creates a codec with one range for every `size` numbers, at least 1.
    pub fn in_blocks(size: usize) -> Self {
        MinMax8 { blocks: Blocks { size: Some(size), header: 8, bits: 8 }, not_finite: NotFinite::Refuse }
    }

    /// Creates a codec with one range for all numbers of a run: two passes over memory.
    pub fn whole() -> Self {
        MinMax8 { blocks: Blocks { size: None, header: 8, bits: 8 }, not_finite: NotFinite::Refuse }
    }

    /// Sets the treatment of NaN and infinity. Where they propagate, all numbers of their block become NaN.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        MinMax8 { not_finite, ..self }
    }
}

impl Spelled for MinMax8 {
    fn word(&self) -> &'static str {
        "min-max8"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.blocks.field(options, "elements that share a range")?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for MinMax8 {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    /// Returns what follows from ‖x̂ − x‖² ≤ B (max − min)²/510² and (max − min)² ≤ 2‖x‖², so that δ = 1 −
    /// B/(2·255²).
    fn properties(&self) -> Properties {
        let delta = |size: usize| 1.0 - size as f64 / (2.0 * 255.0 * 255.0);
        let contraction = self.blocks.size.map(delta).filter(|delta| *delta > 0.0);
        Properties { unbiased: false, contraction, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        self.blocks.encoded_len(len)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(*self))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        for (x, header, codes) in self.blocks.encode(from, to) {
            match (kernels::range(x), self.not_finite) {
                (Some(range), _) => {
                    write(range, header);
                    kernels::quantize(x, range, codes);
                }
                (None, NotFinite::Refuse) => return Err(refuse(from, 0, f32::is_finite)),
                (None, NotFinite::Propagate) => {
                    write(Range { min: f32::NAN, max: f32::NAN }, header);
                    codes.fill(0);
                }
                (None, NotFinite::Saturate) => encode_saturated(x, header, codes),
            }
        }
        Ok(self.encoded_len(from.len()))
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        for (header, codes, x) in self.blocks.decode(from, to)? {
            kernels::add_dequantized(codes, read(header), weight, x);
        }
        Ok(())
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        for (header, codes, x) in self.blocks.decode(from, to)? {
            kernels::dequantize(codes, read(header), x);
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        Some(cuda::MIN_MAX.encode(self.blocks.size, len, self.not_finite))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        Some(cuda::MIN_MAX.decode(self.blocks.size, len, weight))
    }
}

fn encode_saturated(x: &[f32], header: &mut [u8], codes: &mut [u8]) {
    let mut range: Option<Range> = None;
    saturated_pieces(x, f32::MAX, |_, x| {
        let piece = kernels::range(x);
        range = range.map_or(piece, |range| piece.map(|piece| range.merge(piece)));
    });
    let range = range.unwrap_or(Range { min: 0.0, max: 0.0 });
    write(range, header);
    saturated_pieces(x, f32::MAX, |at, x| kernels::quantize(x, range, &mut codes[at..at + x.len()]));
}

fn write(range: Range, header: &mut [u8]) {
    header[..4].copy_from_slice(&range.min.to_le_bytes());
    header[4..].copy_from_slice(&range.max.to_le_bytes());
}

fn read(header: &[u8]) -> Range {
    let [min, max] = bytemuck::pod_read_unaligned::<[[u8; 4]; 2]>(header).map(f32::from_le_bytes);
    Range { min, max }
}
