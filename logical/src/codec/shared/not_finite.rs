//! The treatment of NaN and infinity, after a kernel has detected one; not on a fast path.

use crate::codec::CodecError;

/// Number of elements per piece: they and their codes stay in the first-level cache.
pub(crate) const PIECE: usize = 2048;

/// Returns the error for the first number for which `fits` is false; `start` is the index of the first number of the
/// run.
pub(crate) fn refuse(run: &[f32], start: usize, fits: impl Fn(f32) -> bool) -> CodecError {
    let mut numbered = run.iter().copied().enumerate();
    let (index, value) = numbered.find(|(_, x)| !fits(*x)).unwrap_or((run.len(), f32::NAN));
    CodecError::NotFinite { index: start + index, value }
}

/// Returns 0 for NaN, and clamps other numbers to ±`largest`.
pub(crate) fn saturated(x: f32, largest: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(-largest, largest) }
}

/// Calls `each` with the run, piece by piece, with all numbers [`saturated`], and the start index of the piece.
pub(crate) fn saturated_pieces(run: &[f32], largest: f32, mut each: impl FnMut(usize, &[f32])) {
    let mut clean = [0.0; PIECE];
    for (number, piece) in run.chunks(PIECE).enumerate() {
        let clean = &mut clean[..piece.len()];
        clean.iter_mut().zip(piece).for_each(|(clean, x)| *clean = saturated(*x, largest));
        each(number * PIECE, clean);
    }
}
