//! NaN and infinity: what codecs do with them when asked to.

use super::CodecError;

/// Whether no element is NaN or infinite.
pub(super) fn all_finite(from: &[f32]) -> bool {
    let largest = from.iter().fold(0, |largest, x| largest.max(x.to_bits() << 1));
    largest < f32::INFINITY.to_bits() << 1
}

/// Fails with the first element that is not finite; `start` is the index of the first of all.
pub(super) fn refuse(from: &[f32], start: usize) -> Result<(), CodecError> {
    match from.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(CodecError::NotFinite { index: start + index, value: from[index] }),
        None => Ok(()),
    }
}

/// 0 for NaN, the largest number of its sign for infinity.
pub(super) fn saturated(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(-f32::MAX, f32::MAX) }
}
