//! Codes of numbers relative to the scale of their block: four-bit whole numbers, four-bit powers of two, and
//! eight-bit floats. See the codecs for their uses.
//!
//! ```text
//! int4   code = 8 + x/s rounded, from 1 to 15                          x̂ = s (code − 8)
//! e3m0   code = sign, and the exponent of the power of two next to x/s   x̂ = ±s 2^(e − 7), or 0
//! e4m3   code = the 8-bit float E4M3 next to x/s                       x̂ = s · that float
//! ```
//!
//! A byte holds two codes of four bits, the first in the lower half. If the number of codes is odd, the last upper half is 0.

use hexagram_physical::device::kernels::reach::MAGNITUDE;
use hexagram_physical::device::kernels::sets::set::Set;
use hexagram_physical::device::kernels::{Float, LANES, WIDE, fold, from_fn};
use hexagram_physical::dispatched;

dispatched!(
    /// Returns the largest magnitude, 0 of no numbers; `None` if a number is NaN or infinite.
    pub(crate) fn largest(x: &[f32]) -> Option<f32> = largest_kernel
);

dispatched!(
    /// Writes each x/s as a four-bit whole number. If s is 0 or NaN, all codes are that of 0.
    pub(crate) fn pack_int4(x: &[f32], s: f32, to: &mut [u8]) = pack_int4_kernel
);

dispatched!(
    /// Computes `to ← x̂` of whole numbers in four bits.
    pub(crate) fn unpack_int4(from: &[u8], s: f32, to: &mut [f32]) = unpack_int4_kernel
);

dispatched!(
    /// Computes `to ← to + weight × x̂` of whole numbers in four bits.
    pub(crate) fn add_int4(from: &[u8], s: f32, weight: f32, to: &mut [f32]) = add_int4_kernel
);

dispatched!(
    /// Writes each x/s as the nearest four-bit power of two, with a magnitude of at most 1; 0 below 1/128. If s is 0
    /// or NaN, all codes are 0.
    pub(crate) fn pack_e3m0(x: &[f32], s: f32, to: &mut [u8]) = pack_e3m0_kernel
);

dispatched!(
    /// Computes `to ← x̂` of powers of two in four bits.
    pub(crate) fn unpack_e3m0(from: &[u8], s: f32, to: &mut [f32]) = unpack_e3m0_kernel
);

dispatched!(
    /// Computes `to ← to + weight × x̂` of powers of two in four bits.
    pub(crate) fn add_e3m0(from: &[u8], s: f32, weight: f32, to: &mut [f32]) = add_e3m0_kernel
);

dispatched!(
    /// Writes each x/s as the nearest eight-bit float, at most 448; numbers that are not finite become NaN. If s is
    /// 0, all others are 0.
    pub(crate) fn pack_e4m3(x: &[f32], s: f32, to: &mut [u8]) = pack_e4m3_kernel
);

dispatched!(
    /// Computes `to ← x̂` of floats in eight bits.
    pub(crate) fn unpack_e4m3(from: &[u8], s: f32, to: &mut [f32]) = unpack_e4m3_kernel
);

dispatched!(
    /// Computes `to ← to + weight × x̂` of floats in eight bits.
    pub(crate) fn add_e4m3(from: &[u8], s: f32, weight: f32, to: &mut [f32]) = add_e4m3_kernel
);

/// Number whose addition rounds to the nearest whole number, ties to even: at 1.5 × 2²³ the last place is 1.
const ROUND: f32 = 12_582_912.0;

/// Largest whole number of four bits.
const MOST: f32 = 7.0;

/// Magnitude relative to the scale from which a four-bit power of two is not 0.
const LEAST: f32 = 1.0 / 128.0;

/// Largest number of E4M3, its smallest normal number, its number of steps below 1, where they are smallest, and the
/// code of NaN.
const LARGEST: f32 = 448.0;
const NORMAL: f32 = 1.0 / 64.0;
const STEPS: f32 = 512.0;
const NAN: u32 = 0x7f;

#[inline(always)]
fn largest_kernel<S: Set>(_: S, x: &[f32]) -> Option<f32> {
    let mut most = [0; WIDE];
    let (rows, rest) = x.as_chunks::<WIDE>();
    for row in rows {
        for (most, x) in most.iter_mut().zip(row) {
            *most = (*most).max(x.to_bits() & MAGNITUDE);
        }
    }
    let rest = rest.iter().fold(0, |most, x| most.max(x.to_bits() & MAGNITUDE));
    let most = f32::from_bits(fold(most, u32::max).max(rest));
    most.is_finite().then_some(most)
}

#[inline(always)]
fn pack_int4_kernel<S: Set>(_: S, x: &[f32], s: f32, to: &mut [u8]) {
    if s > 0.0 {
        return pack(x, to, |x| int4(x / s));
    }
    pack(x, to, |_| int4(0.0));
}

/// Returns the code of a whole number next to `part`.
#[inline(always)]
fn int4(part: f32) -> u8 {
    let part = if part > -MOST { part } else { -MOST };
    let part = if part < MOST { part } else { MOST };
    ((part + ROUND).to_bits() as u8).wrapping_add(8) & 15
}

#[inline(always)]
fn unpack_int4_kernel<S: Set>(_: S, from: &[u8], s: f32, to: &mut [f32]) {
    unpack(from, to, |code, _| s * whole(code));
}

#[inline(always)]
fn add_int4_kernel<S: Set>(_: S, from: &[u8], s: f32, weight: f32, to: &mut [f32]) {
    unpack(from, to, |code, x| x + weight * (s * whole(code)));
}

#[inline(always)]
fn whole(code: u8) -> f32 {
    f32::from(code) - 8.0
}

#[inline(always)]
fn pack_e3m0_kernel<S: Set>(_: S, x: &[f32], s: f32, to: &mut [u8]) {
    pack(x, to, |x| e3m0(x, x / s));
}

/// Returns the code of the power of two next to `part`, with the sign of `x`.
#[inline(always)]
fn e3m0(x: f32, part: f32) -> u8 {
    let bits = part.to_bits() & MAGNITUDE;
    // Half of the fraction's range, added, carries into the exponent from the middle between two powers on.
    let exponent = (bits + (1 << 22)) >> 23;
    let code = exponent.wrapping_sub(127 - 7).min(7);
    let code = if code < 1 { 1 } else { code } | x.to_bits() >> 31 << 3;
    // Of NaN, too, whose magnitude is above that of 1.
    let fits = (bits >= LEAST.to_bits()) & (bits <= 1.0f32.to_bits());
    if fits { code as u8 } else { 0 }
}

#[inline(always)]
fn unpack_e3m0_kernel<S: Set>(_: S, from: &[u8], s: f32, to: &mut [f32]) {
    unpack(from, to, |code, _| s * power(code));
}

#[inline(always)]
fn add_e3m0_kernel<S: Set>(_: S, from: &[u8], s: f32, weight: f32, to: &mut [f32]) {
    unpack(from, to, |code, x| x + weight * (s * power(code)));
}

/// Returns the power of two of a code.
#[inline(always)]
fn power(code: u8) -> f32 {
    let exponent = u32::from(code & 7);
    let bits = (exponent + 127 - 7) << 23 | u32::from(code >> 3) << 31;
    f32::from_bits(if exponent == 0 { 0 } else { bits })
}

#[inline(always)]
fn pack_e4m3_kernel<S: Set>(_: S, x: &[f32], s: f32, to: &mut [u8]) {
    if s > 0.0 {
        return to.iter_mut().zip(x).for_each(|(to, x)| *to = e4m3(*x, x / s));
    }
    to.iter_mut().zip(x).for_each(|(to, x)| *to = e4m3(*x, 0.0));
}

/// Returns the code of the float next to `part`, with the sign of `x`.
#[inline(always)]
fn e4m3(x: f32, part: f32) -> u8 {
    let sign = x.to_bits() >> 31 << 7;
    let part = part.abs();
    let part = if part < LARGEST { part } else { LARGEST };
    // The eighth step is the smallest normal number, and has the code that follows.
    let steps = (part * STEPS + ROUND).to_bits() & 0xff;
    let bits = part.to_bits();
    // The lowest three bits of the remaining fraction are rounded to even; a carry goes to the exponent.
    let rounded = bits.wrapping_add(0x7_ffff + (bits >> 20 & 1));
    let normal = (rounded >> 20).wrapping_sub(120 << 3);
    let code = sign | if part < NORMAL { steps } else { normal };
    let is_finite = x.to_bits() & MAGNITUDE < f32::INFINITY.to_bits();
    (if is_finite { code } else { NAN }) as u8
}

#[inline(always)]
fn unpack_e4m3_kernel<S: Set>(_: S, from: &[u8], s: f32, to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(x, code)| *x = (s * float(*code)).canonical());
}

#[inline(always)]
fn add_e4m3_kernel<S: Set>(_: S, from: &[u8], s: f32, weight: f32, to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(x, code)| *x = (*x + weight * (s * float(*code))).canonical());
}

/// Returns the float of a code of E4M3.
#[inline(always)]
fn float(code: u8) -> f32 {
    let magnitude = u32::from(code) & 0x7f;
    let normal = f32::from_bits((magnitude << 20) + (120 << 23));
    let small = magnitude as f32 * (1.0 / STEPS);
    let float = if magnitude < 8 { small } else { normal };
    let float = if magnitude == NAN { f32::NAN } else { float };
    f32::from_bits(float.to_bits() | u32::from(code >> 7) << 31)
}

/// Number of codes that are made before they are put together: in one loop, neither would be done in vectors.
const PIECE: usize = 512;

/// Writes the codes of four bits.
#[inline(always)]
fn pack(x: &[f32], to: &mut [u8], code: impl Fn(f32) -> u8) {
    for (x, to) in x.chunks(PIECE).zip(to.chunks_mut(PIECE / 2)) {
        let mut codes = [0; PIECE];
        codes.iter_mut().zip(x).for_each(|(to, x)| *to = code(*x));
        for (two, byte) in codes.as_chunks::<2>().0.iter().zip(to) {
            *byte = two[0] | two[1] << 4;
        }
    }
}

/// Replaces each number of `to` by `with(code, number)`, where `code` is its four-bit code in `from`.
#[inline(always)]
fn unpack(from: &[u8], to: &mut [f32], with: impl Fn(u8, f32) -> f32) {
    let (rows, rest) = to.as_chunks_mut::<{ 2 * LANES }>();
    let (bytes, last) = from.split_at(rows.len() * LANES);
    for (row, bytes) in rows.iter_mut().zip(bytes.as_chunks::<LANES>().0) {
        let codes: [u8; 2 * LANES] = from_fn(|at| bytes[at / 2] >> (4 * (at % 2)) & 15);
        *row = from_fn(|at| with(codes[at], row[at]).canonical());
    }
    for (pair, byte) in rest.chunks_mut(2).zip(last) {
        let codes = [byte & 15, byte >> 4];
        pair.iter_mut().zip(codes).for_each(|(x, code)| *x = with(code, *x).canonical());
    }
}

#[cfg(test)]
mod tests;
