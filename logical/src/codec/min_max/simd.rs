//! Eight bits for each number, relative to a range.
//!
//! `code = round(255 (x − min) / (max − min))`, `x̂ = min + (code / 255)(max − min)`
//!
//! No operation overflows, and no range is too small: if `max − min` is infinite, numbers are halved before the subtraction,
//! and if it is nearly denormal, they are multiplied. If it is 0, so is every code, and x̂ is exact.

use hexagram_physical::device::kernels::sets::set::Set;
use hexagram_physical::device::kernels::{Float, WIDE, fold, prefetch};
use hexagram_physical::dispatched;

/// The smallest and the largest of some numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Range {
    /// Bound from below.
    pub(crate) min: f32,
    /// Bound from above.
    pub(crate) max: f32,
}

impl Range {
    /// Returns the range that covers both.
    #[must_use]
    pub(crate) fn merge(self, other: Range) -> Range {
        Range { min: lesser(self.min, other.min), max: greater(self.max, other.max) }
    }

    /// Returns the power of two by which numbers are multiplied before the subtraction, and 255 ÷ the resulting
    /// range.
    fn steps(self) -> (f32, f32) {
        let range = self.max - self.min;
        let power = match range {
            range if range == f32::INFINITY => 0.5,
            range if range < SMALL => 1.0 / SMALL,
            _ => 1.0,
        };
        let range = self.max * power - self.min * power;
        (power, if range > 0.0 { 255.0 / range } else { 0.0 })
    }
}

/// 2⁻¹⁰⁰: 255 ÷ a smaller range might overflow.
const SMALL: f32 = f32::from_bits((127 - 100) << 23);

/// Numbers between two prefetches, and their distance: within the next block, since more would evict data that is
/// read again.
const STRIDE: usize = 256;
const AHEAD: usize = 3072;

dispatched!(
    /// Returns the range of numbers, or `None` if one of them is NaN or infinite; 0 to 0 for no numbers. A bound of 0 is
    /// positive.
    pub(crate) fn range(from: &[f32]) -> Option<Range> = range_kernel
);

dispatched!(
    /// Writes a code for each number, which saturates outside the range.
    pub(crate) fn quantize(from: &[f32], range: Range, to: &mut [u8]) = quantize_kernel
);

dispatched!(
    /// Computes `to ← x̂`. A range that is not finite gives results that are not finite.
    pub(crate) fn dequantize(from: &[u8], range: Range, to: &mut [f32]) = dequantize_kernel
);

dispatched!(
    /// Computes `to ← to + weight × x̂`.
    pub(crate) fn add_dequantized(from: &[u8], range: Range, weight: f32, to: &mut [f32]) = add_kernel
);

#[inline(always)]
fn lesser(x: f32, y: f32) -> f32 {
    if x < y { x } else { y }
}

#[inline(always)]
fn greater(x: f32, y: f32) -> f32 {
    if x > y { x } else { y }
}

#[inline(always)]
fn range_kernel<S: Set>(_: S, from: &[f32]) -> Option<Range> {
    let Some(first) = from.first() else {
        return Some(Range { min: 0.0, max: 0.0 });
    };
    let mut all = ([*first; WIDE], [*first; WIDE], [0.0f32; WIDE]);
    let (chunks, rest) = from.as_chunks::<WIDE>();
    chunks.iter().for_each(|x| extend(&mut all, x));
    let mut last = [*first; WIDE];
    last[..rest.len()].copy_from_slice(rest);
    extend(&mut all, &last);
    let (min, max, sum) = all;
    // A NaN stays in a sum, infinity stays or becomes NaN, and a sum may overflow without either.
    if !fold(sum, |x, y| x + y).is_finite() && !from.iter().all(|x| x.is_finite()) {
        return None;
    }
    // Of zeros with both signs, the order of elements would determine which is found.
    Some(Range { min: fold(min, lesser) + 0.0, max: fold(max, greater) + 0.0 })
}

#[inline(always)]
fn extend((min, max, sum): &mut ([f32; WIDE], [f32; WIDE], [f32; WIDE]), x: &[f32; WIDE]) {
    for lane in 0..WIDE {
        min[lane] = lesser(x[lane], min[lane]);
        max[lane] = greater(x[lane], max[lane]);
        sum[lane] += x[lane];
    }
}

#[inline(always)]
fn quantize_kernel<S: Set>(_: S, from: &[f32], range: Range, to: &mut [u8]) {
    let (power, steps) = range.steps();
    // A product with 1 changes nothing but the time it takes.
    if power == 1.0 {
        each(from, to, |x| code((x - range.min) * steps));
    } else {
        each(from, to, |x| code((x * power - range.min * power) * steps));
    }
}

/// Rounds to the nearest of 0 … 255, ties to even.
#[inline(always)]
fn code(y: f32) -> u8 {
    // At 1.5 × 2²³ the last place is 1, so that the addition rounds.
    (lesser(greater(y, 0.0), 255.0) + 12_582_912.0).to_bits() as u8
}

#[inline(always)]
fn dequantize_kernel<S: Set>(_: S, from: &[u8], range: Range, to: &mut [f32]) {
    with_values(range, from, to, |x, _| x);
}

#[inline(always)]
fn add_kernel<S: Set>(_: S, from: &[u8], range: Range, weight: f32, to: &mut [f32]) {
    with_values(range, from, to, |x, to| to + weight * x);
}

#[inline(always)]
fn with_values(range: Range, from: &[u8], to: &mut [f32], combine: impl Fn(f32, f32) -> f32) {
    let min = range.min;
    let whole = range.max - range.min;
    let share = |code: u8| f32::from(code) * (1.0 / 255.0);
    if whole == f32::INFINITY {
        let half = range.max * 0.5 - min * 0.5;
        update(from, to, |code, to| combine(min + share(code) * half + share(code) * half, to));
    } else {
        update(from, to, |code, to| combine(min + share(code) * whole, to));
    }
}

#[inline(always)]
fn each(from: &[f32], to: &mut [u8], code: impl Fn(f32) -> u8) {
    for (from, to) in from.chunks(STRIDE).zip(to.chunks_mut(STRIDE)) {
        prefetch(from.as_ptr().wrapping_add(AHEAD), STRIDE);
        for (x, to) in from.iter().zip(to) {
            *to = code(*x);
        }
    }
}

#[inline(always)]
fn update(from: &[u8], to: &mut [f32], value: impl Fn(u8, f32) -> f32) {
    for (code, to) in from.iter().zip(to) {
        *to = value(*code, *to).canonical();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram_physical::device::kernels::dispatch::each_set;
    use hexagram_physical::device::kernels::testing::{bits, canonical, finite, plain, with_odd};

    fn reference(x: f32, range: Range) -> u8 {
        let x = f64::from(x);
        let min = f64::from(range.min);
        let max = f64::from(range.max);
        if max > min { (255.0 * (x - min) / (max - min)).round_ties_even() as u8 } else { 0 }
    }

    fn value(code: u8, range: Range) -> f64 {
        let min = f64::from(range.min);
        let max = f64::from(range.max);
        min + f64::from(code) / 255.0 * (max - min)
    }

    #[test]
    fn ranges_agree_with_a_loop() {
        each_set(|set| {
            for len in 1..300 {
                for x in [plain(len, 1), finite(len, 2)] {
                    let range = range(&x).unwrap();
                    let fold = |pick: fn(f32, f32) -> f32| x.iter().copied().reduce(pick).unwrap();
                    assert_eq!(
                        (range.min, range.max),
                        (fold(f32::min), fold(f32::max)),
                        "{set}, length {len}"
                    );
                }
                for (at, bad) in [(0, f32::NAN), (len / 2, f32::INFINITY), (len - 1, -f32::INFINITY)] {
                    let mut x = plain(len, 1);
                    x[at] = bad;
                    assert_eq!(range(&x), None, "{set}, {bad} at {at} of {len}");
                }
            }
            assert_eq!(range(&[]), Some(Range { min: 0.0, max: 0.0 }));
            for zeros in [vec![-0.0], vec![0.0, -0.0], vec![-0.0; 70]] {
                let range = range(&zeros).unwrap();
                assert_eq!((range.min.to_bits(), range.max.to_bits()), (0, 0), "{set}, {zeros:?}");
            }
        });
    }

    /// Runs of every length: plain, near 1000, tiny, denormal, of the largest range, constant.
    fn runs(len: usize) -> [Vec<f32>; 6] {
        let of = |scale: f32, offset: f32| plain(len, 3).iter().map(|x| x * scale + offset).collect();
        [of(1.0, 0.0), of(0.0005, 1000.0), of(1e-11, 0.0), of(1e-42, 0.0), of(f32::MAX, 0.0), of(0.0, 0.7)]
    }

    #[test]
    fn codes_are_within_half_a_step_whatever_the_range() {
        each_set(|set| {
            for x in (1..300).flat_map(runs) {
                let range = range(&x).unwrap();
                let mut codes = vec![0; x.len()];
                let mut back = vec![0.0; x.len()];
                quantize(&x, range, &mut codes);
                dequantize(&codes, range, &mut back);
                let width = f64::from(range.max) - f64::from(range.min);
                let largest = greater(range.max, -range.min).min(f32::MAX.next_down());
                let place = f64::from(largest.next_up()) - f64::from(largest);
                for ((x, code), back) in x.iter().zip(&codes).zip(&back) {
                    assert!(code.abs_diff(reference(*x, range)) <= 1, "{set}: {x} in {range:?} is {code}");
                    let off = (f64::from(*back) - value(*code, range)).abs();
                    assert!(off <= 4.0 * place, "{set}: {code} in {range:?} became {back}, {off} off");
                    let error = (f64::from(*x) - f64::from(*back)).abs();
                    assert!(error <= width / 510.0 + 4.0 * place, "{set}: {x} in {range:?} became {back}");
                    assert!(width > 0.0 || x == back);
                }
            }
        });
    }

    #[test]
    fn every_set_says_the_same_bits() {
        for x in (0..300).flat_map(runs) {
            let range = range(&x).unwrap();
            let mut all = Vec::new();
            each_set(|_| {
                let mut codes = vec![0; x.len()];
                let mut back = vec![0.0; x.len()];
                let mut sum = with_odd(x.len(), 3);
                quantize(&x, range, &mut codes);
                dequantize(&codes, range, &mut back);
                add_dequantized(&codes, range, 0.3, &mut sum);
                let want = canonical(with_odd(x.len(), 3).iter().zip(&back).map(|(y, x)| y + 0.3 * x));
                assert_eq!(bits(&sum), want);
                all.push((codes, bits(&back), bits(&sum)));
            });
            all.windows(2).for_each(|two| assert_eq!(two[0], two[1]));
        }
    }

    #[test]
    fn numbers_outside_the_range_saturate() {
        each_set(|set| {
            let mut codes = [7; 20];
            let outside =
                [-9.0, -f32::MAX, 9.0, f32::MAX, -1.0, 1.0, 0.0, f32::INFINITY, -f32::INFINITY, 0.5];
            quantize(&outside.repeat(2), Range { min: -1.0, max: 1.0 }, &mut codes);
            assert_eq!(codes[..10], [0, 0, 255, 255, 0, 255, 128, 255, 0, 191], "{set}");
            assert_eq!(codes[..10], codes[10..]);
        });
    }
}
