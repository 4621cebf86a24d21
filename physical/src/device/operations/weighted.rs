//! Host kernel for weighted sums of several runs: each element is computed in wider floats, and rounded once. Neighbour
//! averaging uses it most.
//!
//! Runs pass through blocks that stay in the first-level cache, so that every run is read once and the result is
//! written once, for any number of terms.

use crate::device::kernels::{Float, add_scaled, add_scaled_wide, narrow, scaled_wide};
use crate::memory::dtype::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements at a time: a block of f64 and those of the terms stay in the first-level cache.
const BLOCK: usize = 512;

/// Computes `to ← Σ weight × term`, in order; `None` is the term in `to`. All have the same number of elements,
/// aligned.
pub(crate) fn sum(dtype: DType, terms: &[(f64, Option<&[u8]>)], to: &mut [u8]) {
    match dtype {
        DType::F64 => typed(terms, to, add_f64, narrow_f64),
        DType::F32 => typed(terms, to, add_f32, |to, sum| narrow(sum, to)),
        DType::F16 => typed(terms, to, add_half::<f16>, narrow_half::<f16>),
        DType::BF16 => typed(terms, to, add_half::<bf16>, narrow_half::<bf16>),
        DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::Bool => {}
    }
}

/// Computes the sum of typed terms. `add` gets whether a term is the first, which is not added to zero: −0 would
/// become +0.
fn typed<T: bytemuck::Pod, W: bytemuck::Pod>(
    terms: &[(f64, Option<&[u8]>)],
    to: &mut [u8],
    add: impl Fn(bool, f64, &[T], &mut [W]),
    narrow: impl Fn(&mut [T], &[W]),
) {
    let to: &mut [T] = bytemuck::cast_slice_mut(to);
    let terms: Vec<(f64, Option<&[T]>)> =
        terms.iter().map(|(weight, term)| (*weight, term.map(bytemuck::cast_slice))).collect();
    let mut sum = [W::zeroed(); BLOCK];
    for start in (0..to.len()).step_by(BLOCK) {
        let block = start..to.len().min(start + BLOCK);
        let sum = &mut sum[..block.len()];
        for (place, (weight, from)) in terms.iter().enumerate() {
            let from = from.map_or(&to[block.clone()], |from| &from[block.clone()]);
            add(place == 0, *weight, from, sum);
        }
        narrow(&mut to[block], sum);
    }
}

fn add_f64(first: bool, weight: f64, from: &[f64], sum: &mut [f64]) {
    let both = sum.iter_mut().zip(from);
    match first {
        true => both.for_each(|(sum, x)| *sum = weight * x),
        false => both.for_each(|(sum, x)| *sum += weight * x),
    }
}

fn add_f32(first: bool, weight: f64, from: &[f32], sum: &mut [f64]) {
    match first {
        true => scaled_wide(weight, from, sum),
        false => add_scaled_wide(weight, from, sum),
    }
}

fn add_half<H>(first: bool, weight: f64, from: &[H], sum: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    let mut wide = [0.0; BLOCK];
    let weight = weight as f32;
    let wide = &mut wide[..from.len()];
    from.convert_to_f32_slice(wide);
    match first {
        true => sum.iter_mut().zip(wide).for_each(|(sum, x)| *sum = weight * *x),
        false => add_scaled(weight, wide, sum),
    }
}

/// Copies the sum, with every NaN replaced by the canonical NaN.
fn narrow_f64(to: &mut [f64], sum: &[f64]) {
    to.iter_mut().zip(sum).for_each(|(to, sum)| *to = sum.canonical());
}

fn narrow_half<H>(to: &mut [H], sum: &[f32])
where
    [H]: HalfFloatSliceExt,
{
    let mut clean = [0.0; BLOCK];
    let clean = &mut clean[..sum.len()];
    clean.iter_mut().zip(sum).for_each(|(clean, sum)| *clean = sum.canonical());
    to.convert_from_f32_slice(clean);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summed<T: bytemuck::Pod>(dtype: DType, terms: &[(f64, Option<&[T]>)], to: &[T]) -> Vec<T> {
        let mut out = to.to_vec();
        let terms: Vec<_> =
            terms.iter().map(|(weight, term)| (*weight, term.map(bytemuck::cast_slice))).collect();
        sum(dtype, &terms, bytemuck::cast_slice_mut(&mut out));
        out
    }

    #[test]
    fn every_length_agrees_with_a_scalar_loop() {
        for len in (0..300).chain([BLOCK, BLOCK + 1, 3 * BLOCK + 7]) {
            let a: Vec<f32> = (0..len).map(|i| i as f32 * 0.3 - 3.0).collect();
            let b: Vec<f32> = (0..len).map(|i| 7.0 / (1.0 + i as f32)).collect();
            let to: Vec<f32> = (0..len).map(|i| 0.1 * i as f32).collect();
            let third = 1.0 / 3.0;
            let want = |i: usize| {
                let a = f64::from(a[i]);
                let b = f64::from(b[i]);
                let to = f64::from(to[i]);
                (third * a + third * to + third * b) as f32
            };
            let terms = [(third, Some(&a[..])), (third, None), (third, Some(&b[..]))];
            assert_eq!(summed(DType::F32, &terms, &to), (0..len).map(want).collect::<Vec<_>>(), "{len}");
        }
    }

    #[test]
    fn narrow_types_round_once() {
        // 1 + ε/2 + ε/2 is 1 if rounded at each step, and 1 + ε if rounded once.
        let half = bf16::from_f32(bf16::EPSILON.to_f32() / 2.0);
        let terms = [(1.0, None), (1.0, Some(&[half][..])), (1.0, Some(&[half][..]))];
        let want = bf16::from_f32(1.0 + bf16::EPSILON.to_f32());
        assert_eq!(summed(DType::BF16, &terms, &[bf16::ONE]), [want]);
        let large = [f16::from_f32(60_000.0)];
        let terms = [(0.5, None), (0.5, Some(&large[..]))];
        assert_eq!(summed(DType::F16, &terms, &large), large, "weights apply before the sum could overflow");
    }

    #[test]
    fn odd_values_stay_what_they_are() {
        let odd = [f64::NAN, f64::INFINITY, f64::MIN_POSITIVE / 2.0, -0.0];
        let out = summed(DType::F64, &[(1.0, None)], &odd);
        assert_eq!(out.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), odd.map(f64::to_bits));
        // But a NaN's payload and sign, which would depend on the order of terms.
        let nan = -f64::from_bits(f64::NAN.to_bits() + 7);
        for terms in [[(0.5, None), (0.5, Some(&[nan][..]))], [(0.5, Some(&[-f64::NAN][..])), (0.5, None)]] {
            assert_eq!(summed(DType::F64, &terms, &[nan])[0].to_bits(), f64::NAN.to_bits());
        }
        let nan = [bf16::from_bits(0xff81)];
        assert_eq!(summed(DType::BF16, &[(1.0, Some(&nan[..]))], &nan)[0].to_bits(), 0x7fc0);
        assert_eq!(summed(DType::F32, &[], &[3.0f32]), [0.0], "no terms");
    }
}
