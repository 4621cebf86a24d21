//! Blocks with one scale as their header, computed from the largest magnitude, and two numbers per byte: the common
//! part of E3M0 and Int4.

pub(crate) mod simd;

use super::not_finite::saturated_pieces;
use crate::codec::NotFinite;
use simd::largest;

/// Rule of a block with one scale.
#[derive(Clone, Copy)]
pub(crate) struct Scaled {
    /// Returns the scale of a block with this largest magnitude.
    pub(crate) scale: fn(f32) -> f32,
    /// Writes the codes of numbers with their scale; NaN is the scale of a block that is not finite.
    pub(crate) pack: fn(&[f32], f32, &mut [u8]),
}

impl Scaled {
    /// Encodes a block, or returns `None` to refuse it. If NaN or infinity propagates, the scale of its block is NaN.
    pub(crate) fn encode(
        self,
        not_finite: NotFinite,
        x: &[f32],
        header: &mut [u8],
        codes: &mut [u8],
    ) -> Option<()> {
        let scale = match (largest(x), not_finite) {
            (Some(largest), _) => (self.scale)(largest),
            (None, NotFinite::Refuse) => return None,
            (None, NotFinite::Propagate) => f32::NAN,
            (None, NotFinite::Saturate) => {
                header.copy_from_slice(&self.pack_saturated(x, codes).to_le_bytes());
                return Some(());
            }
        };
        header.copy_from_slice(&scale.to_le_bytes());
        (self.pack)(x, scale, codes);
        Some(())
    }

    /// Writes the codes of a block with saturated numbers, and returns its scale.
    fn pack_saturated(self, x: &[f32], codes: &mut [u8]) -> f32 {
        let mut most = 0.0f32;
        saturated_pieces(x, f32::MAX, |_, x| most = most.max(largest(x).unwrap_or_default()));
        let scale = (self.scale)(most);
        // Pieces have even lengths, except the last.
        saturated_pieces(x, f32::MAX, |at, x| {
            (self.pack)(x, scale, &mut codes[at / 2..][..x.len().div_ceil(2)]);
        });
        scale
    }
}
