//! Host kernels: element-wise reductions and scaling of typed bytes. Integers use plain loops that the compiler
//! vectorizes; floats use [`kernels`], which exploit instructions beyond the baseline of the machine.
//!
//! 16-bit floats are widened to f32 in blocks, combined there, and rounded once per combination.

use crate::device::kernels;
use crate::device::kernels::Float;
use crate::memory::dtype::{DType, ReduceOp};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements converted at a time: three blocks of f32 stay in the first-level cache.
const BLOCK: usize = 512;

/// Computes `to ← to ∘ from`. Both hold the same number of whole elements; `to` is aligned, `from` need not be.
pub(crate) fn reduce(op: ReduceOp, dtype: DType, from: &[u8], to: &mut [u8]) {
    match dtype {
        DType::Bool => booleans(op, from, to),
        _ if op.is_bitwise() => bytes(op, from, to),
        DType::U8 => integers::<u8>(op, from, to),
        DType::I8 => integers::<i8>(op, from, to),
        DType::I16 => integers::<i16>(op, from, to),
        DType::I32 => integers::<i32>(op, from, to),
        DType::I64 => integers::<i64>(op, from, to),
        DType::F32 => combine(from, to, |from, to| kernels::reduce_f32(op, from, to)),
        DType::F64 => combine(from, to, |from, to| kernels::reduce_f64(op, from, to)),
        DType::F16 => combine(from, to, |from: &[f16], to| halves(op, from, to)),
        DType::BF16 => combine(from, to, |from: &[bf16], to| halves(op, from, to)),
    }
}

/// Computes `to ← to × factor`, for float types.
pub(crate) fn scale(dtype: DType, factor: f64, to: &mut [u8]) {
    match dtype {
        DType::F64 => kernels::scale_f64(factor, bytemuck::cast_slice_mut(to)),
        DType::F32 => kernels::scale_f32(factor, bytemuck::cast_slice_mut(to)),
        DType::F16 => scale_halves::<f16>(factor as f32, to),
        DType::BF16 => scale_halves::<bf16>(factor as f32, to),
        DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::Bool => {}
    }
}

/// Replaces every NaN by the NaN that reductions return, for f32 and f64, after arithmetic of another library.
#[cfg(feature = "mpi")]
pub(crate) fn canonicalize(dtype: DType, to: &mut [u8]) {
    match dtype {
        DType::F64 => kernels::canonicalize_f64(bytemuck::cast_slice_mut(to)),
        DType::F32 => kernels::canonicalize_f32(bytemuck::cast_slice_mut(to)),
        _ => {}
    }
}

/// Computes `to ← to + weight × from`, for float types. Both are as in [`reduce`].
pub(crate) fn add_scaled(dtype: DType, weight: f64, from: &[u8], to: &mut [u8]) {
    match dtype {
        DType::F64 => combine(from, to, |from: &[f64], to| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = (*to + weight * from).canonical());
        }),
        DType::F32 => combine(from, to, |from, to| kernels::add_scaled(weight as f32, from, to)),
        DType::F16 => combine(from, to, |from: &[f16], to| add_scaled_halves(weight as f32, from, to)),
        DType::BF16 => combine(from, to, |from: &[bf16], to| add_scaled_halves(weight as f32, from, to)),
        DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::Bool => {}
    }
}

fn add_scaled_halves<H>(weight: f32, from: &[H], to: &mut [H])
where
    [H]: HalfFloatSliceExt,
{
    widened(from, to, |from, to| kernels::add_scaled(weight, from, to));
}

fn scale_halves<H: bytemuck::Pod>(factor: f32, to: &mut [u8])
where
    [H]: HalfFloatSliceExt,
{
    let mut wide = [0.0f32; BLOCK];
    for to in bytemuck::cast_slice_mut::<_, H>(to).chunks_mut(BLOCK) {
        let wide = &mut wide[..to.len()];
        to.convert_to_f32_slice(wide);
        wide.iter_mut().for_each(|x| *x = (*x * factor).canonical());
        to.convert_from_f32_slice(wide);
    }
}

fn halves<H>(op: ReduceOp, from: &[H], to: &mut [H])
where
    [H]: HalfFloatSliceExt,
{
    widened(from, to, |from, to| kernels::reduce_f32(op, from, to));
}

/// Runs `kernel` on both as f32, block by block, and rounds the result.
fn widened<H>(from: &[H], to: &mut [H], kernel: impl Fn(&[f32], &mut [f32]))
where
    [H]: HalfFloatSliceExt,
{
    let mut wide_from = [0.0f32; BLOCK];
    let mut wide_to = [0.0f32; BLOCK];
    for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
        let wide_from = &mut wide_from[..to.len()];
        let wide_to = &mut wide_to[..to.len()];
        from.convert_to_f32_slice(wide_from);
        to.convert_to_f32_slice(wide_to);
        kernel(wide_from, wide_to);
        to.convert_from_f32_slice(wide_to);
    }
}

/// Runs `kernel` on typed slices, through a small aligned copy if `from` is not aligned.
fn combine<T: bytemuck::Pod>(from: &[u8], to: &mut [u8], kernel: impl Fn(&[T], &mut [T])) {
    let to: &mut [T] = bytemuck::cast_slice_mut(to);
    if let Ok(from) = bytemuck::try_cast_slice(from) {
        return kernel(from, to);
    }
    let mut aligned = [T::zeroed(); BLOCK];
    for (from, to) in from.chunks(BLOCK * size_of::<T>()).zip(to.chunks_mut(BLOCK)) {
        let aligned = &mut aligned[..to.len()];
        bytemuck::cast_slice_mut(aligned).copy_from_slice(from);
        kernel(aligned, to);
    }
}

fn each<T: Copy>(from: &[T], to: &mut [T], combine: impl Fn(T, T) -> T) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = combine(*to, *from);
    }
}

trait Integer: bytemuck::Pod + Ord {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty),*) => {$(impl Integer for $t {
        fn add(self, other: Self) -> Self { self.wrapping_add(other) }
        fn multiply(self, other: Self) -> Self { self.wrapping_mul(other) }
    })*};
}
integers!(u8, i8, i16, i32, i64);

fn integers<T: Integer>(op: ReduceOp, from: &[u8], to: &mut [u8]) {
    combine(from, to, |from: &[T], to| match op {
        ReduceOp::Sum | ReduceOp::Mean => each(from, to, T::add),
        ReduceOp::Product => each(from, to, T::multiply),
        ReduceOp::Min => each(from, to, T::min),
        ReduceOp::Max => each(from, to, T::max),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => {}
    });
}

/// Combines the bits of integers, byte by byte, which gives the same bits for any type.
fn bytes(op: ReduceOp, from: &[u8], to: &mut [u8]) {
    match op {
        ReduceOp::BitAnd => each(from, to, |x, y| x & y),
        ReduceOp::BitOr => each(from, to, |x, y| x | y),
        ReduceOp::BitXor => each(from, to, |x, y| x ^ y),
        ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Min | ReduceOp::Max | ReduceOp::Product => {}
    }
}

/// Combines booleans to 0 or 1; every byte except 0 is true.
fn booleans(op: ReduceOp, from: &[u8], to: &mut [u8]) {
    let truth = |x: u8| u8::from(x != 0);
    match op.of(DType::Bool) {
        ReduceOp::BitAnd => each(from, to, |x, y| truth(x) & truth(y)),
        ReduceOp::BitXor => each(from, to, |x, y| truth(x) ^ truth(y)),
        _ => each(from, to, |x, y| truth(x | y)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced<T: bytemuck::Pod>(op: ReduceOp, dtype: DType, from: &[T], to: &[T]) -> Vec<T> {
        let mut out = to.to_vec();
        reduce(op, dtype, bytemuck::cast_slice(from), bytemuck::cast_slice_mut(&mut out));
        out
    }

    #[test]
    fn every_length_and_alignment_agrees_with_a_scalar_loop() {
        for len in (0..300).chain([BLOCK, BLOCK + 1, 3 * BLOCK + 7]) {
            let from: Vec<f32> = (0..len).map(|i| i as f32 * 0.5 - 3.0).collect();
            let to: Vec<f32> = (0..len).map(|i| 7.0 - i as f32).collect();
            let want: Vec<f32> = from.iter().zip(&to).map(|(a, b)| b + a).collect();
            assert_eq!(reduced(ReduceOp::Sum, DType::F32, &from, &to), want);
            let mut shifted = vec![0u8; 1];
            shifted.extend_from_slice(bytemuck::cast_slice(&from));
            let mut out = to.clone();
            reduce(ReduceOp::Sum, DType::F32, &shifted[1..], bytemuck::cast_slice_mut(&mut out));
            assert_eq!(out, want, "unaligned, length {len}");
        }
    }

    #[test]
    fn integers_wrap_and_compare() {
        assert_eq!(reduced(ReduceOp::Sum, DType::U8, &[250u8, 1], &[10, 2]), [4, 3]);
        assert_eq!(reduced(ReduceOp::Product, DType::I32, &[i32::MAX, -3], &[2, 4]), [-2, -12]);
        assert_eq!(reduced(ReduceOp::Min, DType::I64, &[-5i64, 9], &[3, 4]), [-5, 4]);
        assert_eq!(reduced(ReduceOp::Max, DType::I64, &[-5i64, 9], &[3, 4]), [3, 9]);
    }

    /// The definition of a reduction of two numbers; the caller truncates the result to its type.
    fn by_definition(op: ReduceOp, x: i128, y: i128) -> i128 {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => x + y,
            ReduceOp::Min => x.min(y),
            ReduceOp::Max => x.max(y),
            ReduceOp::Product => x * y,
            ReduceOp::BitAnd => x & y,
            ReduceOp::BitOr => x | y,
            ReduceOp::BitXor => x ^ y,
        }
    }

    #[test]
    fn every_integer_type_has_every_reduction_by_its_definition() {
        macro_rules! check {
            ($($t:ty => $dtype:ident),*) => {$(
                // Every pair of one byte, at the lower and the upper end of the type.
                let numbers = || (0..=u8::MAX).map(|low| (<$t>::MAX - <$t>::MAX / 2).wrapping_add(low as $t));
                let (from, to): (Vec<$t>, Vec<$t>) = (0..=u8::MAX)
                    .flat_map(|x| numbers().map(move |y| (<$t>::MIN.wrapping_sub(127).wrapping_add(x as $t), y)))
                    .unzip();
                for op in ReduceOp::ALL {
                    let want: Vec<_> =
                        from.iter().zip(&to).map(|(x, y)| by_definition(op, *x as i128, *y as i128) as $t).collect();
                    assert!(reduced(op, DType::$dtype, &from, &to) == want, "{op} of {}", DType::$dtype);
                }
            )*};
        }
        check!(u8 => U8, i8 => I8, i16 => I16, i32 => I32, i64 => I64);
    }

    #[test]
    fn every_byte_but_zero_is_true_and_results_are_0_or_1() {
        let (from, to): (Vec<u8>, Vec<u8>) =
            (0..=u8::MAX).flat_map(|x| (0..=u8::MAX).map(move |y| (x, y))).unzip();
        for op in ReduceOp::ALL {
            let one = |(x, y): (&u8, &u8)| match op {
                ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Max | ReduceOp::BitOr => *x != 0 || *y != 0,
                ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => *x != 0 && *y != 0,
                ReduceOp::BitXor => (*x != 0) != (*y != 0),
            };
            let want: Vec<u8> = from.iter().zip(&to).map(|pair| one(pair).into()).collect();
            assert!(reduced(op, DType::Bool, &from, &to) == want, "{op}");
        }
    }

    #[test]
    fn halves_know_one_nan_and_the_sign_of_zero_from_either_side() {
        let code = |x: Vec<f16>| x.into_iter().map(f16::to_bits).collect::<Vec<_>>();
        let odd = [0xfe01, 0x7c01, 0xffff].map(f16::from_bits);
        let zero = [f16::NEG_ZERO, f16::ZERO];
        for op in ReduceOp::ALL.into_iter().filter(|op| !op.is_bitwise()) {
            let other = [f16::ONE, f16::NEG_INFINITY, f16::NAN];
            assert_eq!(code(reduced(op, DType::F16, &odd, &other)), [0x7e00; 3], "{op}");
            assert_eq!(code(reduced(op, DType::F16, &other, &odd)), [0x7e00; 3], "{op}");
            let odd = [bf16::from_bits(0xff81)];
            let other = [bf16::NEG_INFINITY];
            assert_eq!(reduced(op, DType::BF16, &odd, &other)[0].to_bits(), 0x7fc0, "{op}");
        }
        let swapped = [zero[1], zero[0]];
        assert_eq!(code(reduced(ReduceOp::Min, DType::F16, &zero, &swapped)), [0x8000; 2]);
        assert_eq!(code(reduced(ReduceOp::Max, DType::F16, &zero, &swapped)), [0; 2]);
    }

    #[test]
    fn halves_round_once_per_combination() {
        let a = f16::from_f32(2048.0);
        let b = f16::from_f32(1.0);
        assert_eq!(reduced(ReduceOp::Sum, DType::F16, &[b], &[a]), [a], "2049 is not an f16; ties to even");
        let a = bf16::from_f32(1.0);
        let b = bf16::from_f32(0.25);
        assert_eq!(reduced(ReduceOp::Product, DType::BF16, &[b], &[a]), [b]);
    }

    #[test]
    fn scaling_covers_every_float() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let mut bytes: Vec<u64> = vec![0; 2];
            let bytes = &mut bytemuck::cast_slice_mut::<_, u8>(&mut bytes)[..dtype.size()];
            match dtype {
                DType::F16 => bytes.copy_from_slice(&f16::from_f32(6.0).to_le_bytes()),
                DType::BF16 => bytes.copy_from_slice(&bf16::from_f32(6.0).to_le_bytes()),
                DType::F32 => bytes.copy_from_slice(&6.0f32.to_le_bytes()),
                _ => bytes.copy_from_slice(&6.0f64.to_le_bytes()),
            }
            scale(dtype, 0.5, bytes);
            let value = match dtype {
                DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
                DType::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
                DType::F32 => f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)),
                _ => bytemuck::pod_read_unaligned::<f64>(bytes),
            };
            assert_eq!(value, 3.0, "{dtype}");
        }
    }
}
