//! Blocks whose header is one scale, which follows from the largest magnitude: the loops that E3M0 and Int4 share.

use super::blocks::{Blocks, read_scale};
use super::not_finite::{refuse, saturated_pieces};
use super::{CodecError, NotFinite};
use hexagram_physical::device::kernels::scaled::largest;

/// Codec with one scale in each block, of two numbers to a byte.
#[derive(Clone, Copy)]
pub(super) struct Scaled {
    pub(super) blocks: Blocks,
    pub(super) not_finite: NotFinite,
    /// Returns the scale of a block by its largest magnitude.
    pub(super) scale: fn(f32) -> f32,
    /// Writes the codes of numbers by their scale; NaN is that of a block with what is not finite.
    pub(super) pack: fn(&[f32], f32, &mut [u8]),
}

impl Scaled {
    /// Encodes a run. Where what is not finite propagates, it is the scale of its block that is NaN.
    pub(super) fn encode(self, from: &[f32], to: &mut [u8]) -> Result<usize, CodecError> {
        for (x, header, codes) in self.blocks.encode(from, to) {
            let scale = match (largest(x), self.not_finite) {
                (Some(largest), _) => (self.scale)(largest),
                (None, NotFinite::Refuse) => return Err(refuse(from, 0, f32::is_finite)),
                (None, NotFinite::Propagate) => f32::NAN,
                (None, NotFinite::Saturate) => {
                    let scale = self.pack_saturated(x, codes);
                    header.copy_from_slice(&scale.to_le_bytes());
                    continue;
                }
            };
            header.copy_from_slice(&scale.to_le_bytes());
            (self.pack)(x, scale, codes);
        }
        Ok(self.blocks.encoded_len(from.len()))
    }

    /// Writes the codes of a block with what is not finite cut off, and returns its scale.
    fn pack_saturated(self, x: &[f32], codes: &mut [u8]) -> f32 {
        let mut most = 0.0f32;
        saturated_pieces(x, f32::MAX, |_, x| most = most.max(largest(x).unwrap_or_default()));
        let scale = (self.scale)(most);
        // Pieces are of even lengths, but for the last.
        saturated_pieces(x, f32::MAX, |at, x| {
            (self.pack)(x, scale, &mut codes[at / 2..][..x.len().div_ceil(2)]);
        });
        scale
    }
}

/// Passes on the codes, the scale and the numbers of each block of a message.
///
/// # Errors
/// [`CodecError::Damaged`] if `from` has another size than the message of so many numbers.
pub(super) fn decode(
    blocks: Blocks,
    from: &[u8],
    to: &mut [f32],
    with: impl Fn(&[u8], f32, &mut [f32]),
) -> Result<(), CodecError> {
    blocks.decode(from, to)?.for_each(|(header, codes, x)| with(codes, read_scale(header), x));
    Ok(())
}
