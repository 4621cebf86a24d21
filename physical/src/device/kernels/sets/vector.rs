//! Sixteen lanes in registers, for kernels whose loops the compiler does not vectorize.
//!
//! Loops that carry a register of lanes, like those that pack bits, compile to scalar code; written with these few
//! operations they do not. All results are rounded like Rust arithmetic.

use super::portable::Portable;
use super::set::Set;
use crate::device::kernels::{Float, LANES, from_fn};

/// Operations of an instruction set on 16 lanes.
pub trait Vectors: Set {
    /// 16 × u32.
    type Words: Copy;
    /// 16 × f32.
    type Floats: Copy;

    /// Loads whole numbers.
    fn words(self, x: [u32; LANES]) -> Self::Words;
    /// Returns whole numbers as an array.
    fn to_words(self, x: Self::Words) -> [u32; LANES];
    /// Loads floats.
    fn floats(self, x: [f32; LANES]) -> Self::Floats;
    /// Returns floats as an array.
    fn to_floats(self, x: Self::Floats) -> [f32; LANES];
    /// Returns the bits of floats.
    fn bits(self, x: Self::Floats) -> Self::Words;
    /// Returns the floats of bits.
    fn with_bits(self, x: Self::Words) -> Self::Floats;

    /// Returns the bitwise or.
    fn or(self, x: Self::Words, y: Self::Words) -> Self::Words;
    /// Returns the bitwise and.
    fn and(self, x: Self::Words, y: Self::Words) -> Self::Words;
    /// Returns the sum modulo 2³².
    fn add(self, x: Self::Words, y: Self::Words) -> Self::Words;
    /// Returns the product modulo 2³².
    fn multiply(self, x: Self::Words, y: Self::Words) -> Self::Words;
    /// Returns the larger of numbers below 2³¹, lane by lane.
    fn larger(self, x: Self::Words, y: Self::Words) -> Self::Words;
    /// Shifts to the left, by less than 32.
    fn left(self, x: Self::Words, count: u32) -> Self::Words;
    /// Shifts to the right, by less than 32.
    fn right(self, x: Self::Words, count: u32) -> Self::Words;

    /// Returns the rounded sum.
    fn sum(self, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// Returns the rounded product.
    fn product(self, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// Returns x where x < y, and y elsewhere.
    fn smaller(self, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// Returns each number, and replaces every NaN by [`Float::NAN`].
    fn canonical(self, x: Self::Floats) -> Self::Floats;
    /// Drops the fractions of numbers that are at least 0 and below 2³¹.
    fn truncated(self, x: Self::Floats) -> Self::Words;
    /// Converts numbers below 2³¹ to floats.
    fn converted(self, x: Self::Words) -> Self::Floats;
}

impl Vectors for Portable {
    type Words = [u32; LANES];
    type Floats = [f32; LANES];

    #[inline(always)]
    fn words(self, x: [u32; LANES]) -> Self::Words {
        x
    }
    #[inline(always)]
    fn to_words(self, x: Self::Words) -> [u32; LANES] {
        x
    }
    #[inline(always)]
    fn floats(self, x: [f32; LANES]) -> Self::Floats {
        x
    }
    #[inline(always)]
    fn to_floats(self, x: Self::Floats) -> [f32; LANES] {
        x
    }
    #[inline(always)]
    fn bits(self, x: Self::Floats) -> Self::Words {
        from_fn(|i| x[i].to_bits())
    }
    #[inline(always)]
    fn with_bits(self, x: Self::Words) -> Self::Floats {
        from_fn(|i| f32::from_bits(x[i]))
    }
    #[inline(always)]
    fn or(self, x: Self::Words, y: Self::Words) -> Self::Words {
        from_fn(|i| x[i] | y[i])
    }
    #[inline(always)]
    fn and(self, x: Self::Words, y: Self::Words) -> Self::Words {
        from_fn(|i| x[i] & y[i])
    }
    #[inline(always)]
    fn add(self, x: Self::Words, y: Self::Words) -> Self::Words {
        from_fn(|i| x[i].wrapping_add(y[i]))
    }
    #[inline(always)]
    fn multiply(self, x: Self::Words, y: Self::Words) -> Self::Words {
        from_fn(|i| x[i].wrapping_mul(y[i]))
    }
    #[inline(always)]
    fn larger(self, x: Self::Words, y: Self::Words) -> Self::Words {
        from_fn(|i| if x[i] > y[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn left(self, x: Self::Words, count: u32) -> Self::Words {
        from_fn(|i| x[i] << count)
    }
    #[inline(always)]
    fn right(self, x: Self::Words, count: u32) -> Self::Words {
        from_fn(|i| x[i] >> count)
    }
    #[inline(always)]
    fn sum(self, x: Self::Floats, y: Self::Floats) -> Self::Floats {
        from_fn(|i| x[i] + y[i])
    }
    #[inline(always)]
    fn product(self, x: Self::Floats, y: Self::Floats) -> Self::Floats {
        from_fn(|i| x[i] * y[i])
    }
    #[inline(always)]
    fn smaller(self, x: Self::Floats, y: Self::Floats) -> Self::Floats {
        from_fn(|i| if x[i] < y[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn canonical(self, x: Self::Floats) -> Self::Floats {
        from_fn(|i| x[i].canonical())
    }
    #[inline(always)]
    fn truncated(self, x: Self::Floats) -> Self::Words {
        from_fn(|i| x[i] as u32)
    }
    #[inline(always)]
    fn converted(self, x: Self::Words) -> Self::Floats {
        from_fn(|i| x[i] as i32 as f32)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::x86::{Avx2, Avx512};
    use super::Vectors;
    use crate::device::kernels::{Float, LANES};
    use std::arch::x86_64::*;

    /// One instruction on a whole register.
    macro_rules! wide {
        ($name:ident($x:ty, $y:ty) -> $out:ty = $instruction:path) => {
            #[inline(always)]
            fn $name(self, x: $x, y: $y) -> $out {
                // SAFETY: a value of the set exists only if the machine has its instructions.
                unsafe { $instruction(x, y) }
            }
        };
        ($name:ident($x:ty) -> $out:ty = $instruction:path) => {
            #[inline(always)]
            fn $name(self, x: $x) -> $out {
                // SAFETY: as above.
                unsafe { $instruction(x) }
            }
        };
    }

    /// One instruction on each half.
    macro_rules! halves {
        ($name:ident($x:ty, $y:ty) -> $out:ty = $instruction:path) => {
            #[inline(always)]
            fn $name(self, x: [$x; 2], y: [$y; 2]) -> [$out; 2] {
                // SAFETY: a value of the set exists only if the machine has its instructions.
                unsafe { [$instruction(x[0], y[0]), $instruction(x[1], y[1])] }
            }
        };
        ($name:ident($x:ty) -> $out:ty = $instruction:path) => {
            #[inline(always)]
            fn $name(self, x: [$x; 2]) -> [$out; 2] {
                // SAFETY: as above.
                unsafe { [$instruction(x[0]), $instruction(x[1])] }
            }
        };
    }

    /// The same 64 bytes with a different type.
    macro_rules! same_size {
        ($x:expr) => {
            // SAFETY: registers and arrays of numbers hold any bits, and transmute compares their sizes.
            unsafe { std::mem::transmute($x) }
        };
    }

    const NAN: f32 = <f32 as Float>::NAN;

    impl Vectors for Avx512 {
        type Words = __m512i;
        type Floats = __m512;

        #[inline(always)]
        fn words(self, x: [u32; LANES]) -> __m512i {
            same_size!(x)
        }
        #[inline(always)]
        fn to_words(self, x: __m512i) -> [u32; LANES] {
            same_size!(x)
        }
        #[inline(always)]
        fn floats(self, x: [f32; LANES]) -> __m512 {
            same_size!(x)
        }
        #[inline(always)]
        fn to_floats(self, x: __m512) -> [f32; LANES] {
            same_size!(x)
        }
        #[inline(always)]
        fn bits(self, x: __m512) -> __m512i {
            same_size!(x)
        }
        #[inline(always)]
        fn with_bits(self, x: __m512i) -> __m512 {
            same_size!(x)
        }
        wide!(or(__m512i, __m512i) -> __m512i = _mm512_or_si512);
        wide!(and(__m512i, __m512i) -> __m512i = _mm512_and_si512);
        wide!(add(__m512i, __m512i) -> __m512i = _mm512_add_epi32);
        wide!(multiply(__m512i, __m512i) -> __m512i = _mm512_mullo_epi32);
        wide!(larger(__m512i, __m512i) -> __m512i = _mm512_max_epi32);
        wide!(sum(__m512, __m512) -> __m512 = _mm512_add_ps);
        wide!(product(__m512, __m512) -> __m512 = _mm512_mul_ps);
        wide!(smaller(__m512, __m512) -> __m512 = _mm512_min_ps);
        wide!(truncated(__m512) -> __m512i = _mm512_cvttps_epi32);
        wide!(converted(__m512i) -> __m512 = _mm512_cvtepi32_ps);
        #[inline(always)]
        fn left(self, x: __m512i, count: u32) -> __m512i {
            // SAFETY: a value of the set exists only if the machine has its instructions.
            unsafe { _mm512_sll_epi32(x, _mm_cvtsi32_si128(count as i32)) }
        }
        #[inline(always)]
        fn canonical(self, x: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe {
                let odd = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
                _mm512_mask_mov_ps(x, odd, _mm512_set1_ps(NAN))
            }
        }
        #[inline(always)]
        fn right(self, x: __m512i, count: u32) -> __m512i {
            // SAFETY: as above.
            unsafe { _mm512_srl_epi32(x, _mm_cvtsi32_si128(count as i32)) }
        }
    }

    impl Vectors for Avx2 {
        type Words = [__m256i; 2];
        type Floats = [__m256; 2];

        #[inline(always)]
        fn words(self, x: [u32; LANES]) -> [__m256i; 2] {
            bytemuck::cast(x)
        }
        #[inline(always)]
        fn to_words(self, x: [__m256i; 2]) -> [u32; LANES] {
            bytemuck::cast(x)
        }
        #[inline(always)]
        fn floats(self, x: [f32; LANES]) -> [__m256; 2] {
            bytemuck::cast(x)
        }
        #[inline(always)]
        fn to_floats(self, x: [__m256; 2]) -> [f32; LANES] {
            bytemuck::cast(x)
        }
        #[inline(always)]
        fn bits(self, x: [__m256; 2]) -> [__m256i; 2] {
            bytemuck::cast(x)
        }
        #[inline(always)]
        fn with_bits(self, x: [__m256i; 2]) -> [__m256; 2] {
            bytemuck::cast(x)
        }
        halves!(or(__m256i, __m256i) -> __m256i = _mm256_or_si256);
        halves!(and(__m256i, __m256i) -> __m256i = _mm256_and_si256);
        halves!(add(__m256i, __m256i) -> __m256i = _mm256_add_epi32);
        halves!(multiply(__m256i, __m256i) -> __m256i = _mm256_mullo_epi32);
        halves!(larger(__m256i, __m256i) -> __m256i = _mm256_max_epi32);
        halves!(sum(__m256, __m256) -> __m256 = _mm256_add_ps);
        halves!(product(__m256, __m256) -> __m256 = _mm256_mul_ps);
        halves!(smaller(__m256, __m256) -> __m256 = _mm256_min_ps);
        halves!(truncated(__m256) -> __m256i = _mm256_cvttps_epi32);
        halves!(converted(__m256i) -> __m256 = _mm256_cvtepi32_ps);
        #[inline(always)]
        fn left(self, x: [__m256i; 2], count: u32) -> [__m256i; 2] {
            // SAFETY: a value of the set exists only if the machine has its instructions.
            x.map(|x| unsafe { _mm256_sll_epi32(x, _mm_cvtsi32_si128(count as i32)) })
        }
        #[inline(always)]
        fn canonical(self, x: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: as above.
            x.map(|x| unsafe {
                let odd = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
                _mm256_blendv_ps(x, _mm256_set1_ps(NAN), odd)
            })
        }
        #[inline(always)]
        fn right(self, x: [__m256i; 2], count: u32) -> [__m256i; 2] {
            // SAFETY: as above.
            x.map(|x| unsafe { _mm256_srl_epi32(x, _mm_cvtsi32_si128(count as i32)) })
        }
    }
}
