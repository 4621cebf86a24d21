//! One bit for each number: its sign. Bit i of a byte, from the lowest, is 1 for a negative number; ±0 is positive.

use hexagram_physical::device::kernels::sets::set::Set;
use hexagram_physical::device::kernels::{Float, LANES, WIDE, fold, from_fn};
use hexagram_physical::dispatched;

dispatched!(
    /// Packs the signs, and returns the sum of absolute values, in f32 with 64 lanes: give it some thousands at a time. NaN
    /// counts as positive, and makes the sum NaN. `to` has one byte for every 8 numbers, rounded up.
    pub(crate) fn pack_signs(from: &[f32], to: &mut [u8]) -> f64 = pack_kernel
);

dispatched!(
    /// Computes `to ← ±size`, after the signs.
    pub(crate) fn unpack_signs(from: &[u8], size: f32, to: &mut [f32]) = unpack_kernel
);

dispatched!(
    /// Computes `to ← to ± size`, after the signs.
    pub(crate) fn add_signs(from: &[u8], size: f32, to: &mut [f32]) = add_kernel
);

#[inline(always)]
fn pack_kernel<S: Set>(set: S, from: &[f32], to: &mut [u8]) -> f64 {
    let mut sums = [0.0; WIDE];
    let (from, from_rest) = from.as_chunks::<WIDE>();
    let (to, to_rest) = to.split_at_mut(from.len() * 8);
    for (x, to) in from.iter().zip(to.as_chunks_mut().0) {
        *to = pack_lanes(set, x, &mut sums).to_le_bytes();
    }
    let mut last = [0.0; WIDE];
    last[..from_rest.len()].copy_from_slice(from_rest);
    let signs = pack_lanes(set, &last, &mut sums).to_le_bytes();
    to_rest.copy_from_slice(&signs[..to_rest.len()]);
    fold(from_fn(|lane| f64::from(sums[lane])), |x, y| x + y)
}

#[inline(always)]
fn pack_lanes<S: Set>(set: S, x: &[f32; WIDE], sums: &mut [f32; WIDE]) -> u64 {
    *sums = from_fn(|lane| sums[lane] + x[lane].abs());
    let signs = x.as_chunks().0.iter().map(|x| u64::from(set.negative(*x)));
    signs.rev().fold(0, |all, signs| all << LANES | signs)
}

#[inline(always)]
fn unpack_kernel<S: Set>(set: S, from: &[u8], size: f32, to: &mut [f32]) {
    with_signs(set, from, size, to, |x, _| x);
}

#[inline(always)]
fn add_kernel<S: Set>(set: S, from: &[u8], size: f32, to: &mut [f32]) {
    with_signs(set, from, size, to, |x, to| to + x);
}

#[inline(always)]
fn with_signs<S: Set>(set: S, from: &[u8], size: f32, to: &mut [f32], combine: impl Fn(f32, f32) -> f32) {
    let (from, from_rest) = from.split_at(to.len() / LANES * 2);
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    for (signs, to) in from.as_chunks().0.iter().zip(to) {
        let x = set.signed(size, u16::from_le_bytes(*signs));
        *to = from_fn(|lane| combine(x[lane], to[lane]).canonical());
    }
    let mut last = [0; 2];
    last[..from_rest.len()].copy_from_slice(from_rest);
    let x = set.signed(size, u16::from_le_bytes(last));
    to_rest.iter_mut().zip(x).for_each(|(to, x)| *to = combine(x, *to).canonical());
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram_physical::device::kernels::dispatch::each_set;
    use hexagram_physical::device::kernels::testing::{bits, canonical, numbers, plain, with_odd};

    #[test]
    fn every_length_agrees_with_a_loop() {
        each_set(|set| {
            for len in 0..300usize {
                let x = numbers(len, 5);
                let y = with_odd(len, 6);
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
                let want = canonical(y.iter().zip(&want).map(|(y, x)| y + x));
                assert_eq!(bits(&sum), want, "{set}, length {len}");
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
