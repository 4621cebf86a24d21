//! AVX2 and AVX-512 instructions that the compiler would not choose itself.

use super::set::Set;
use crate::device::kernels::LANES;
use crate::device::kernels::reach::MAGNITUDE;
use std::arch::x86_64::*;
use std::is_x86_feature_detected as has;
use std::mem::transmute;

/// AVX2, and its companion extensions.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

/// AVX-512, as on Skylake servers.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

impl Avx2 {
    /// Returns the proof that this machine has the instructions, or `None`.
    pub fn detect() -> Option<Self> {
        let all = has!("avx2") && has!("bmi1") && has!("bmi2") && has!("f16c") && has!("popcnt");
        all.then_some(Avx2(()))
    }
}

impl Avx512 {
    /// Returns the proof that this machine has the instructions, or `None`.
    pub fn detect() -> Option<Self> {
        let all = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        Avx2::detect().filter(|_| all).map(|_| Avx512(()))
    }
}

/// Does [`Set::load_shared`] in two registers.
///
/// # Safety
/// The numbers are mapped and aligned, and the machine has AVX.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn load_256(from: *const f32) -> [f32; LANES] {
    let (low, high): (__m256, __m256);
    // SAFETY: reads the 64 bytes that the caller has promised.
    unsafe {
        std::arch::asm!(
            "vmovups {low}, [{from}]",
            "vmovups {high}, [{from} + 32]",
            from = in(reg) from,
            low = out(ymm_reg) low,
            high = out(ymm_reg) high,
            options(nostack, preserves_flags, readonly),
        );
        transmute([low, high])
    }
}

/// Does [`Set::load_shared`] in one register.
///
/// # Safety
/// The numbers are mapped and aligned, and the machine has AVX-512F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_512(from: *const f32) -> [f32; LANES] {
    let all: __m512;
    // SAFETY: reads the 64 bytes that the caller has promised.
    unsafe {
        std::arch::asm!(
            "vmovups {all}, [{from}]",
            from = in(reg) from,
            all = out(zmm_reg) all,
            options(nostack, preserves_flags, readonly),
        );
        transmute(all)
    }
}

impl Set for Avx2 {
    #[inline(always)]
    fn f16_of(self, x: [f32; LANES]) -> [u16; LANES] {
        // SAFETY: the machine has F16C and AVX; arrays and registers are plain bytes of equal sizes.
        unsafe {
            let [low, high]: [__m256; 2] = transmute(x);
            transmute([low, high].map(|x| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)))
        }
    }

    #[inline(always)]
    fn f32_of(self, x: [u16; LANES]) -> [f32; LANES] {
        // SAFETY: as above.
        unsafe {
            let [low, high]: [__m128i; 2] = transmute(x);
            transmute([_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)])
        }
    }

    #[inline(always)]
    unsafe fn load_shared(self, from: *const f32) -> [f32; LANES] {
        // SAFETY: promised by the caller; the machine has AVX.
        unsafe { load_256(from) }
    }

    #[inline(always)]
    fn negative(self, x: [f32; LANES]) -> u16 {
        // SAFETY: the machine has AVX; arrays and registers are plain bytes of equal sizes.
        unsafe {
            let [low, high]: [__m256; 2] = transmute(x);
            let zero = _mm256_setzero_ps();
            let low = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(low, zero));
            let high = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(high, zero));
            (low | high << 8) as u16
        }
    }

    #[inline(always)]
    fn signed(self, size: f32, bits: u16) -> [f32; LANES] {
        // SAFETY: the machine has AVX2; arrays and registers are plain bytes of equal sizes.
        unsafe {
            let size = _mm256_castps_si256(_mm256_set1_ps(size));
            let bits = _mm256_set1_epi32(i32::from(bits));
            // Shifts the bit of each lane to its sign.
            let low = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
            let high = _mm256_sub_epi32(low, _mm256_set1_epi32(8));
            let sign = _mm256_set1_epi32(i32::MIN);
            transmute(
                [low, high]
                    .map(|by| _mm256_xor_si256(size, _mm256_and_si256(_mm256_sllv_epi32(bits, by), sign))),
            )
        }
    }

    #[inline(always)]
    fn reaching(self, least: u32, x: &[f32; LANES], first: u32, to: &mut [u32; LANES]) -> usize {
        // SAFETY: the machine has AVX2; arrays and registers are plain bytes of equal sizes.
        let bits = unsafe {
            let halves: [__m256i; 2] = transmute(*x);
            let least = _mm256_set1_epi32(least as i32);
            let number = _mm256_set1_epi32(MAGNITUDE as i32);
            let [low, high] = halves.map(|x| {
                let magnitude = _mm256_and_si256(x, number);
                let reached = _mm256_cmpeq_epi32(_mm256_max_epu32(magnitude, least), magnitude);
                _mm256_movemask_ps(_mm256_castsi256_ps(reached))
            });
            low | high << 8
        };
        let mut left = bits as u32;
        let mut count = 0;
        while left != 0 {
            to[count % LANES] = first + left.trailing_zeros();
            left &= left - 1;
            count += 1;
        }
        count
    }
}

impl Set for Avx512 {
    #[inline(always)]
    fn f16_of(self, x: [f32; LANES]) -> [u16; LANES] {
        // SAFETY: the machine has AVX-512F; arrays and registers are plain bytes of equal sizes.
        unsafe {
            transmute(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(transmute::<[f32; LANES], __m512>(x)))
        }
    }

    #[inline(always)]
    fn f32_of(self, x: [u16; LANES]) -> [f32; LANES] {
        // SAFETY: as above.
        unsafe { transmute(_mm512_cvtph_ps(transmute::<[u16; LANES], __m256i>(x))) }
    }

    #[inline(always)]
    unsafe fn load_shared(self, from: *const f32) -> [f32; LANES] {
        // SAFETY: promised by the caller; the machine has AVX-512F.
        unsafe { load_512(from) }
    }

    #[inline(always)]
    fn negative(self, x: [f32; LANES]) -> u16 {
        // SAFETY: as above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(transmute::<[f32; LANES], __m512>(x), _mm512_setzero_ps()) }
    }

    #[inline(always)]
    fn signed(self, size: f32, bits: u16) -> [f32; LANES] {
        // SAFETY: as above.
        unsafe { transmute(_mm512_mask_blend_ps(bits, _mm512_set1_ps(size), _mm512_set1_ps(-size))) }
    }

    #[inline(always)]
    fn reaching(self, least: u32, x: &[f32; LANES], first: u32, to: &mut [u32; LANES]) -> usize {
        // SAFETY: as above.
        unsafe {
            let magnitude =
                _mm512_and_si512(transmute::<[f32; LANES], __m512i>(*x), _mm512_set1_epi32(MAGNITUDE as i32));
            let reached = _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(least as i32));
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let places = _mm512_add_epi32(lanes, _mm512_set1_epi32(first as i32));
            *to = transmute::<__m512i, [u32; LANES]>(_mm512_maskz_compress_epi32(reached, places));
            reached.count_ones() as usize
        }
    }
}
