//! Sums in double precision, in an order that GPUs can follow: of squares, of squared differences, of numbers.
//!
//! A run is summed by blocks of [`SUMMED`] elements: lane i of 64 takes elements i, i + 64, … of the block, and lanes are added
//! by halves. The sums of all blocks are summed in the same way, repeatedly, until one sum remains.

use super::sets::set::Set;
use super::{Float, WIDE, fold};

/// Number of elements, or of their sums, that are added to one sum.
pub const SUMMED: usize = 4096;

dispatched!(
    /// Returns Σ x.
    pub fn sum_f32(x: &[f32]) -> f64 = sum_kernel
);

dispatched!(
    /// Returns Σ x².
    pub fn squares_f32(x: &[f32]) -> f64 = squares_kernel
);

dispatched!(
    /// Returns Σ x².
    pub fn squares_f64(x: &[f64]) -> f64 = squares_kernel
);

dispatched!(
    /// Returns Σ (x − y)², of equal lengths.
    pub fn distance_f32(x: &[f32], y: &[f32]) -> f64 = distance_kernel
);

dispatched!(
    /// Returns Σ (x − y)², of equal lengths.
    pub fn distance_f64(x: &[f64], y: &[f64]) -> f64 = distance_kernel
);

#[inline(always)]
fn sum_kernel<S: Set, T: Float + Into<f64>>(_: S, x: &[T]) -> f64 {
    all(x.chunks(SUMMED).map(|x| block(x, |x| (*x).into())))
}

#[inline(always)]
fn squares_kernel<S: Set, T: Float + Into<f64>>(_: S, x: &[T]) -> f64 {
    let square = |x: &T| {
        let x: f64 = (*x).into();
        x * x
    };
    all(x.chunks(SUMMED).map(|x| block(x, square)))
}

#[inline(always)]
fn distance_kernel<S: Set, T: Float + Into<f64>>(_: S, x: &[T], y: &[T]) -> f64 {
    let square = |(x, y): (&T, &T)| {
        let apart = (*x).into() - (*y).into();
        apart * apart
    };
    let blocks = x.chunks(SUMMED).zip(y.chunks(SUMMED));
    all(blocks.map(|(x, y)| {
        let mut lanes = [0.0; WIDE];
        for (x, y) in x.chunks(WIDE).zip(y.chunks(WIDE)) {
            lanes.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, pair)| *sum += square(pair));
        }
        fold(lanes, |one, other| one + other)
    }))
}

/// Returns the sum of a block's terms.
#[inline(always)]
fn block<T>(x: &[T], term: impl Fn(&T) -> f64) -> f64 {
    let mut lanes = [0.0; WIDE];
    let (rows, rest) = x.as_chunks::<WIDE>();
    for row in rows {
        lanes.iter_mut().zip(row).for_each(|(sum, x)| *sum += term(x));
    }
    lanes.iter_mut().zip(rest).for_each(|(sum, x)| *sum += term(x));
    fold(lanes, |one, other| one + other)
}

/// Returns the sum of the sums of blocks.
#[inline(always)]
fn all(mut blocks: impl Iterator<Item = f64>) -> f64 {
    let Some(first) = blocks.next() else { return 0.0 };
    let Some(second) = blocks.next() else { return first.canonical() };
    let mut sums: Vec<f64> = [first, second].into_iter().chain(blocks).collect();
    while sums.len() > 1 {
        sums = sums.chunks(SUMMED).map(|sums| block(sums, |sum| *sum)).collect();
    }
    sums[0].canonical()
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{plain, with_odd};
    use super::*;
    use std::ops::Range;

    const LENGTHS: [usize; 9] = [0, 1, 63, 64, 65, 4095, 4096, 4097, 20_000];

    /// The definition of a sum, one element at a time.
    fn slowly(terms: Vec<f64>) -> f64 {
        let one = |block: &[f64]| {
            let mut lanes = vec![0.0; 64];
            block.iter().enumerate().for_each(|(at, term)| lanes[at % 64] += term);
            while lanes.len() > 1 {
                let upper = lanes.split_off(lanes.len() / 2);
                lanes.iter_mut().zip(upper).for_each(|(sum, other)| *sum += other);
            }
            lanes[0]
        };
        match terms.len() {
            0 => 0.0,
            1..=SUMMED => one(&terms),
            _ => slowly(terms.chunks(SUMMED).map(one).collect()),
        }
    }

    #[test]
    fn every_set_sums_in_the_order_that_is_documented() {
        for len in LENGTHS {
            let x = plain(len, 1);
            let y = plain(len, 2);
            let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|x| f64::from(*x)).collect() };
            let squared = |x: Vec<f64>| slowly(x.into_iter().map(|x| x * x).collect());
            let apart = || wide(&x).into_iter().zip(wide(&y)).map(|(x, y)| x - y).collect();
            each_set(|set| {
                assert_eq!(sum_f32(&x), slowly(wide(&x)), "{set}, length {len}");
                assert_eq!(squares_f32(&x), squared(wide(&x)), "{set}, length {len}");
                assert_eq!(squares_f64(&wide(&x)), squared(wide(&x)), "{set}, length {len}");
                assert_eq!(distance_f32(&x, &y), squared(apart()), "{set}, length {len}");
                assert_eq!(distance_f64(&wide(&x), &wide(&y)), squared(apart()), "{set}, length {len}");
            });
        }
    }

    #[test]
    fn more_sums_than_a_block_has_are_summed_by_blocks() {
        let sum = all((0..=SUMMED).map(|at| 1.0 / (at + 1) as f64));
        let one = |range: Range<usize>| slowly(range.map(|at| 1.0 / (at + 1) as f64).collect());
        assert_eq!(sum, one(0..SUMMED) + one(SUMMED..SUMMED + 1));
    }

    #[test]
    fn what_is_no_number_is_the_one_nan() {
        each_set(|set| {
            for len in [5, 5000] {
                assert_eq!(squares_f32(&with_odd(len, 1)).to_bits(), f64::NAN.to_bits(), "{set}");
            }
        });
    }
}
