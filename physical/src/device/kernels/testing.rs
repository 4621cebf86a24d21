//! Numbers to test kernels with.

/// Every kind of f32, over and over, with plain numbers between them.
pub(super) fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let mut all = finite(len, seed);
    all.iter_mut().skip(seed as usize).step_by(7).zip(special.iter().cycle()).for_each(|(x, s)| *x = *s);
    all
}

/// Plain numbers, zeros of both signs, denormals, and the largest.
pub(super) fn finite(len: usize, seed: u64) -> Vec<f32> {
    let special = [0.0, -0.0, 1e-40, -1e-45, f32::MIN_POSITIVE, f32::MAX, -f32::MAX, 65520.0, -65504.0];
    let mut all = plain(len, seed);
    all.iter_mut().skip(seed as usize).step_by(5).zip(special.iter().cycle()).for_each(|(x, s)| *x = *s);
    all
}

/// Numbers in [−1, 1).
pub(super) fn plain(len: usize, seed: u64) -> Vec<f32> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let draw = |_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..len).map(draw).collect()
}

/// Their bits, all NaNs being one.
pub(super) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}
