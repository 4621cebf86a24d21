//! Numbers to test kernels with.

use super::float::Float;

/// Returns NaN, infinities, zeros, denormals and extremes in turn, with plain numbers between them.
pub fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let mut all = finite(len, seed);
    all.iter_mut().skip(seed as usize).step_by(7).zip(special.iter().cycle()).for_each(|(x, s)| *x = *s);
    all
}

/// Plain numbers, zeros of both signs, denormals, and the largest.
pub fn finite(len: usize, seed: u64) -> Vec<f32> {
    let special = [0.0, -0.0, 1e-40, -1e-45, f32::MIN_POSITIVE, f32::MAX, -f32::MAX, 65520.0, -65504.0];
    let mut all = plain(len, seed);
    all.iter_mut().skip(seed as usize).step_by(5).zip(special.iter().cycle()).for_each(|(x, s)| *x = *s);
    all
}

/// Numbers in [−1, 1).
pub fn plain(len: usize, seed: u64) -> Vec<f32> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let draw = |_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..len).map(draw).collect()
}

/// The numbers whose results depend on the order of operands, if anything does: NaNs of several payloads and both
/// signs, quiet and signalling, zeros and infinities of both signs, denormals, the largest, and some plain ones.
pub fn odd_f32() -> Vec<f32> {
    let odd = [0x7fc0_0000, 0xffc0_0000, 0x7fc0_1234, 0xffff_ffff, 0x7f80_0001, 0xffa0_0000];
    let rest = [0, 1 << 31, 0x7f80_0000, 0xff80_0000, 1, 0x8000_0001, 0x007f_ffff, 0x7f7f_ffff, 0xff7f_ffff];
    let plain = [1.0f32, -1.0, 1.5, -0.3].map(f32::to_bits);
    odd.into_iter().chain(rest).chain(plain).map(f32::from_bits).collect()
}

/// As [`odd_f32`].
pub fn odd_f64() -> Vec<f64> {
    let odd = [0x7ff8 << 48, 0xfff8 << 48, 0x7ff8_0000_0000_1234, u64::MAX, (0x7ff0 << 48) + 1, 0xfff4 << 48];
    let rest = [0, 1 << 63, 0x7ff0 << 48, 0xfff0 << 48, 1, (1 << 63) + 1, (1 << 52) - 1];
    let plain = [f64::MAX, -f64::MAX, 1.0, -1.0, 1.5, -0.3].map(f64::to_bits);
    odd.into_iter().chain(rest).chain(plain).map(f64::from_bits).collect()
}

/// Each of `odd` paired with each of them, so that all pairs meet in both orders, at every place of a register.
pub fn pairs<T: Float>(odd: &[T]) -> (Vec<T>, Vec<T>) {
    odd.iter().flat_map(|x| odd.iter().map(move |y| (*x, *y))).unzip()
}

/// Plain numbers, with the numbers of [`odd_f32`] between them.
pub fn with_odd(len: usize, seed: u64) -> Vec<f32> {
    let mut all = plain(len, seed);
    let odd = odd_f32();
    all.iter_mut().skip(seed as usize).step_by(2).zip(odd.iter().cycle()).for_each(|(x, odd)| *x = *odd);
    all
}

/// Their bits.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Returns the bits of numbers, after every NaN is replaced by the canonical NaN.
pub fn canonical(x: impl IntoIterator<Item = f32>) -> Vec<u32> {
    x.into_iter().map(|x| x.canonical().to_bits()).collect()
}
