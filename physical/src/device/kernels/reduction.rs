//! Element-wise reductions of floats for all-reduce and similar operations. Every NaN in a result is the canonical
//! NaN.

use super::float::Float;
use super::sets::set::Set;
use super::{LANES, from_fn};
use crate::memory::dtype::ReduceOp;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

dispatched!(
    /// Computes `to ← to ∘ from`, of equal lengths; a mean adds.
    pub fn reduce_f32(op: ReduceOp, from: &[f32], to: &mut [f32]) = reduce_kernel
);

dispatched!(
    /// Computes `to ← to ∘ from`, of equal lengths; a mean adds.
    pub fn reduce_f64(op: ReduceOp, from: &[f64], to: &mut [f64]) = reduce_kernel
);

dispatched!(
    /// Computes `to ← to + from`, of equal lengths; another process may write `from` at the same time.
    pub(crate) fn add_shared(from: SharedFloats<'_>, to: &mut [f32]) = add_shared_kernel
);

dispatched!(
    /// Computes `to ← to × factor`, computed in f64 and rounded once.
    pub fn scale_f32(factor: f64, to: &mut [f32]) = scale_f32_kernel
);

dispatched!(
    /// Computes `to ← to × factor`.
    pub fn scale_f64(factor: f64, to: &mut [f64]) = scale_f64_kernel
);

dispatched!(
    /// Replaces every NaN by the canonical NaN.
    pub fn canonicalize_f32(to: &mut [f32]) = canonicalize_kernel
);

dispatched!(
    /// Replaces every NaN by the canonical NaN.
    pub fn canonicalize_f64(to: &mut [f64]) = canonicalize_kernel
);

/// Numbers that another process may write at any time.
#[derive(Clone, Copy)]
pub(crate) struct SharedFloats<'a> {
    start: *const f32,
    len: usize,
    memory: PhantomData<&'a AtomicU32>,
}

impl SharedFloats<'_> {
    /// Creates a view of the `len` numbers from `start` on.
    ///
    /// # Safety
    /// The numbers are mapped, aligned and initialised for the whole lifetime, and this process writes them only
    /// atomically, if at all.
    pub(crate) unsafe fn new(start: *const f32, len: usize) -> Self {
        SharedFloats { start, len, memory: PhantomData }
    }
}

/// Loads one number that another process may write at the same time.
///
/// # Safety
/// It is mapped and aligned.
pub(super) unsafe fn load_one(from: *const f32) -> f32 {
    // SAFETY: promised by the caller; loads do not write.
    f32::from_bits(unsafe { AtomicU32::from_ptr(from.cast_mut().cast()) }.load(Ordering::Relaxed))
}

#[inline(always)]
fn add_shared_kernel<S: Set>(set: S, from: SharedFloats<'_>, to: &mut [f32]) {
    assert_eq!(from.len, to.len(), "both operands of a sum must have the same length");
    let (rows, rest) = to.as_chunks_mut::<LANES>();
    let mut at = from.start;
    for row in rows {
        // SAFETY: `from` has the same length as `to`, as just checked.
        let x = unsafe { set.load_shared(at) };
        *row = from_fn(|lane| (row[lane] + x[lane]).canonical());
        at = at.wrapping_add(LANES);
    }
    for (lane, y) in rest.iter_mut().enumerate() {
        // SAFETY: as above.
        *y = (*y + unsafe { load_one(at.wrapping_add(lane)) }).canonical();
    }
}

#[inline(always)]
fn reduce_kernel<S: Set, T: Float>(_: S, op: ReduceOp, from: &[T], to: &mut [T]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => each(from, to, |x, y| (y + x).canonical()),
        ReduceOp::Product => each(from, to, |x, y| (y * x).canonical()),
        ReduceOp::Min => each(from, to, |x, y| y.minimum(x)),
        ReduceOp::Max => each(from, to, |x, y| y.maximum(x)),
        // Bits are combined as bytes.
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => {}
    }
}

#[inline(always)]
fn each<T: Float>(from: &[T], to: &mut [T], combine: impl Fn(T, T) -> T) {
    for (x, y) in from.iter().zip(to) {
        *y = combine(*x, *y);
    }
}

#[inline(always)]
fn scale_f32_kernel<S: Set>(_: S, factor: f64, to: &mut [f32]) {
    for x in to {
        *x = ((f64::from(*x) * factor) as f32).canonical();
    }
}

#[inline(always)]
fn scale_f64_kernel<S: Set>(_: S, factor: f64, to: &mut [f64]) {
    for x in to {
        *x = (*x * factor).canonical();
    }
}

/// Numbers that are checked before any of them is written: most blocks contain no NaN, and stay clean in the cache.
const BLOCK: usize = 512;

#[inline(always)]
fn canonicalize_kernel<S: Set, T: Float>(_: S, to: &mut [T]) {
    for block in to.chunks_mut(BLOCK) {
        // Without a branch inside, which would keep it from being vectorized.
        if block.iter().fold(false, |any, x| any | x.is_nan()) {
            block.iter_mut().for_each(|x| *x = x.canonical());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{bits, odd_f32, odd_f64, pairs, with_odd};
    use super::*;

    /// The definition of a reduction, one element at a time and in f64, which holds every f32.
    fn one(op: ReduceOp, x: f64, y: f64) -> f64 {
        let negative = x.is_sign_negative();
        match op {
            _ if x.is_nan() || y.is_nan() => f64::NAN,
            ReduceOp::Sum | ReduceOp::Mean if x == f64::INFINITY && y == -x => f64::NAN,
            ReduceOp::Sum | ReduceOp::Mean if y == f64::INFINITY && x == -y => f64::NAN,
            ReduceOp::Product if x.is_infinite() && y == 0.0 || y.is_infinite() && x == 0.0 => f64::NAN,
            ReduceOp::Sum | ReduceOp::Mean => x + y,
            ReduceOp::Product => x * y,
            ReduceOp::Min if x < y || x == y && negative => x,
            ReduceOp::Max if x > y || x == y && !negative => x,
            ReduceOp::Min | ReduceOp::Max => y,
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => unreachable!("{op} of floats"),
        }
    }

    /// Those that floats have.
    fn ops() -> impl Iterator<Item = ReduceOp> {
        ReduceOp::ALL.into_iter().filter(|op| !op.is_bitwise())
    }

    #[test]
    fn every_pair_of_odd_numbers_gives_the_same_bits_in_either_order_on_every_set() {
        let (x, y) = pairs(&odd_f32());
        let (wide_x, wide_y) = pairs(&odd_f64());
        for op in ops() {
            each_set(|set| {
                let want: Vec<u32> = x
                    .iter()
                    .zip(&y)
                    .map(|(x, y)| (one(op, (*x).into(), (*y).into()) as f32).canonical().to_bits())
                    .collect();
                for (from, to) in [(&x, &y), (&y, &x)] {
                    let mut out = to.clone();
                    reduce_f32(op, from, &mut out);
                    assert_eq!(bits(&out), want, "{op} on {set}");
                }
                let want: Vec<u64> =
                    wide_x.iter().zip(&wide_y).map(|(x, y)| one(op, *x, *y).canonical().to_bits()).collect();
                for (from, to) in [(&wide_x, &wide_y), (&wide_y, &wide_x)] {
                    let mut out = to.clone();
                    reduce_f64(op, from, &mut out);
                    let out: Vec<u64> = out.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(out, want, "{op} on {set}");
                }
            });
        }
    }

    #[test]
    fn every_length_agrees_with_a_loop() {
        for op in ops() {
            each_set(|set| {
                for len in 0..300 {
                    let x = with_odd(len, 1);
                    let y = with_odd(len, 2);
                    let mut out = y.clone();
                    reduce_f32(op, &x, &mut out);
                    let one = |(x, y): (&f32, &f32)| (one(op, (*y).into(), (*x).into()) as f32).canonical();
                    let want: Vec<f32> = x.iter().zip(&y).map(one).collect();
                    assert_eq!(bits(&out), bits(&want), "{op} on {set}, length {len}");
                }
            });
        }
    }

    #[test]
    fn shared_numbers_are_added_like_others() {
        each_set(|set| {
            for len in 0..300 {
                let mut x = with_odd(len, 1);
                let mut want = with_odd(len, 2);
                let mut sum = want.clone();
                reduce_f32(ReduceOp::Sum, &x, &mut want);
                // SAFETY: borrowed memory, which no thread writes.
                add_shared(unsafe { SharedFloats::new(x.as_mut_ptr(), len) }, &mut sum);
                assert_eq!(bits(&sum), bits(&want), "{set}, length {len}");
            }
        });
    }

    #[test]
    fn scaling_and_cleaning_leave_one_nan() {
        each_set(|set| {
            for len in 0..300 {
                let x = with_odd(len, 3);
                let mut scaled = x.clone();
                let mut clean = x.clone();
                scale_f32(0.3, &mut scaled);
                canonicalize_f32(&mut clean);
                let want: Vec<f32> = x.iter().map(|x| ((f64::from(*x) * 0.3) as f32).canonical()).collect();
                assert_eq!(bits(&scaled), bits(&want), "{set}");
                let want: Vec<f32> = x.iter().map(|x| x.canonical()).collect();
                assert_eq!(bits(&clean), bits(&want), "{set}");
            }
            let mut wide = odd_f64();
            let want: Vec<u64> = wide.iter().map(|x| (x * 0.3).canonical().to_bits()).collect();
            scale_f64(0.3, &mut wide);
            canonicalize_f64(&mut wide);
            assert_eq!(wide.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), want, "{set}");
        });
    }
}
