//! One bit for each number: its sign. Bit i of a byte, from the lowest, is 1 for a negative number; ±0 is positive.

use super::{LANES, Set};
use std::array::from_fn;

/// Accumulators: enough to hide an addition's latency.
const WIDE: usize = 4 * LANES;

dispatched!(
    /// Packs the signs, and sums the absolute values: in f32, with 64 lanes, so give it some thousands at a time. NaN
    /// counts as positive, and makes the sum NaN. `to` has a byte for every 8 begun.
    pub fn pack_signs(from: &[f32], to: &mut [u8]) -> f64 = pack_kernel
);

dispatched!(
    /// `to ← ±size`, after the signs.
    pub fn unpack_signs(from: &[u8], size: f32, to: &mut [f32]) = unpack_kernel
);

dispatched!(
    /// `to ← to ± size`, after the signs.
    pub fn add_signs(from: &[u8], size: f32, to: &mut [f32]) = add_kernel
);

#[inline(always)]
fn pack_kernel<S: Set>(set: S, from: &[f32], to: &mut [u8]) -> f64 {
    let mut sums = [0.0f32; WIDE];
    let mut step = |x: &[f32; WIDE], to: &mut [u8; WIDE / 8]| {
        for ((x, to), sums) in x.as_chunks().0.iter().zip(to.as_chunks_mut().0).zip(sums.as_chunks_mut().0) {
            let (x, sums): (&[f32; LANES], &mut [f32; LANES]) = (x, sums);
            *to = set.negative(*x).to_le_bytes();
            *sums = from_fn(|lane| sums[lane] + x[lane].abs());
        }
    };
    let (from, from_rest) = from.as_chunks::<WIDE>();
    let (to, to_rest) = to.split_at_mut(from.len() * WIDE / 8);
    from.iter().zip(to.as_chunks_mut().0).for_each(|(x, to)| step(x, to));
    let (mut x, mut last) = ([0.0; WIDE], [0; WIDE / 8]);
    x[..from_rest.len()].copy_from_slice(from_rest);
    step(&x, &mut last);
    to_rest.copy_from_slice(&last[..to_rest.len()]);
    sums.iter().map(|x| f64::from(*x)).sum()
}

#[inline(always)]
fn unpack_kernel<S: Set>(_: S, from: &[u8], size: f32, to: &mut [f32]) {
    with_signs(from, size, to, |x, _| x);
}

#[inline(always)]
fn add_kernel<S: Set>(_: S, from: &[u8], size: f32, to: &mut [f32]) {
    with_signs(from, size, to, |x, to| to + x);
}

#[inline(always)]
fn with_signs(from: &[u8], size: f32, to: &mut [f32], combine: impl Fn(f32, f32) -> f32) {
    let step = |signs: u16, to: &mut [f32; LANES]| {
        *to = from_fn(|lane| {
            let sign = u32::from(signs) << (31 - lane) & 1 << 31;
            combine(f32::from_bits(size.to_bits() ^ sign), to[lane])
        });
    };
    let (from, from_rest) = from.split_at(to.len() / LANES * 2);
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    from.as_chunks().0.iter().zip(to).for_each(|(signs, to)| step(u16::from_le_bytes(*signs), to));
    let (mut signs, mut last) = ([0; 2], [0.0; LANES]);
    signs[..from_rest.len()].copy_from_slice(from_rest);
    last[..to_rest.len()].copy_from_slice(to_rest);
    step(u16::from_le_bytes(signs), &mut last);
    to_rest.copy_from_slice(&last[..to_rest.len()]);
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{bits, numbers, plain};
    use super::*;

    #[test]
    fn every_length_agrees_with_a_loop() {
        each_set(|set| {
            for len in 0..300usize {
                let (x, y) = (numbers(len, 5), numbers(len, 6));
                let mut signs = vec![0; len.div_ceil(8)];
                pack_signs(&x, &mut signs);
                let mut want = vec![0u8; signs.len()];
                x.iter().enumerate().for_each(|(i, x)| want[i / 8] |= u8::from(*x < 0.0) << (i % 8));
                assert_eq!(signs, want, "{set}, length {len}");

                let want: Vec<f32> = x.iter().map(|x| if *x < 0.0 { -0.7 } else { 0.7 }).collect();
                let mut back = vec![f32::NAN; len];
                unpack_signs(&signs, 0.7, &mut back);
                assert_eq!(back, want, "{set}, length {len}");

                let mut sum = y.clone();
                add_signs(&signs, 0.7, &mut sum);
                let want: Vec<f32> = y.iter().zip(&want).map(|(y, x)| y + x).collect();
                assert_eq!(bits(&sum), bits(&want), "{set}, length {len}");
            }
        });
    }

    #[test]
    fn sums_are_the_same_on_every_set() {
        for len in 0..300 {
            let x = plain(len, 7);
            let mut sums = Vec::new();
            each_set(|_| sums.push(pack_signs(&x, &mut vec![0; len.div_ceil(8)]).to_bits()));
            assert!(sums.iter().all(|sum| *sum == sums[0]), "length {len}");
            let exact: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
            assert!((f64::from_bits(sums[0]) - exact).abs() <= 1e-6 * exact, "length {len}");
        }
    }

    #[test]
    fn a_sum_tells_of_nan_and_infinity_anywhere() {
        each_set(|set| {
            for (at, bad) in (0..200).zip([f32::NAN, f32::INFINITY, -f32::INFINITY].into_iter().cycle()) {
                let mut x = plain(200, 8);
                x[at] = bad;
                assert!(!pack_signs(&x, &mut [0; 25]).is_finite(), "{set}, {bad} at {at}");
            }
        });
    }
}
