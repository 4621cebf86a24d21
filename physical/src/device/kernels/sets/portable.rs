//! The instruction set of every target, by bit tricks on f32 that any vector unit can do.

use super::set::Set;
use crate::device::kernels::reach::MAGNITUDE;
use crate::device::kernels::{LANES, from_fn};

/// The baseline instructions of the build target.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

impl Set for Portable {
    #[inline(always)]
    fn f16_of(self, x: [f32; LANES]) -> [u16; LANES] {
        from_fn(|lane| f16_of(x[lane]))
    }

    #[inline(always)]
    fn f32_of(self, x: [u16; LANES]) -> [f32; LANES] {
        from_fn(|lane| f32_of(x[lane]))
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    unsafe fn load_shared(self, from: *const f32) -> [f32; LANES] {
        use std::arch::x86_64::__m128;
        let (a, b, c, d): (__m128, __m128, __m128, __m128);
        // SAFETY: reads the 64 bytes that the caller has promised; every x86-64 has SSE.
        unsafe {
            std::arch::asm!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                from = in(reg) from,
                a = out(xmm_reg) a,
                b = out(xmm_reg) b,
                c = out(xmm_reg) c,
                d = out(xmm_reg) d,
                options(nostack, preserves_flags, readonly),
            );
            std::mem::transmute([a, b, c, d])
        }
    }

    #[cfg(all(target_arch = "aarch64", not(miri)))]
    #[inline(always)]
    unsafe fn load_shared(self, from: *const f32) -> [f32; LANES] {
        use std::arch::aarch64::float32x4_t;
        let (a, b, c, d): (float32x4_t, float32x4_t, float32x4_t, float32x4_t);
        // SAFETY: as above; every AArch64 that Linux runs on has NEON.
        unsafe {
            std::arch::asm!(
                "ldp {a:q}, {b:q}, [{from}]",
                "ldp {c:q}, {d:q}, [{from}, #32]",
                from = in(reg) from,
                a = out(vreg) a,
                b = out(vreg) b,
                c = out(vreg) c,
                d = out(vreg) d,
                options(nostack, preserves_flags, readonly),
            );
            std::mem::transmute([a, b, c, d])
        }
    }

    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    #[inline(always)]
    unsafe fn load_shared(self, from: *const f32) -> [f32; LANES] {
        // SAFETY: promised by the caller.
        from_fn(|lane| unsafe { crate::device::kernels::reduction::load_one(from.add(lane)) })
    }

    #[inline(always)]
    fn negative(self, x: [f32; LANES]) -> u16 {
        (0..LANES).fold(0, |bits, lane| bits | u16::from(x[lane] < 0.0) << lane)
    }

    #[inline(always)]
    fn signed(self, size: f32, bits: u16) -> [f32; LANES] {
        from_fn(|lane| f32::from_bits(size.to_bits() ^ u32::from(bits) << (31 - lane) & 1 << 31))
    }

    #[inline(always)]
    fn reaching(self, least: u32, x: &[f32; LANES], first: u32, to: &mut [u32; LANES]) -> usize {
        let magnitudes = x.map(|x| x.to_bits() & MAGNITUDE);
        let mut count = 0;
        if magnitudes.iter().fold(0, |largest, x| if *x > largest { *x } else { largest }) >= least {
            for (lane, magnitude) in (0..).zip(magnitudes) {
                to[count] = first + lane;
                count += usize::from(magnitude >= least);
            }
        }
        count
    }
}

const F16_INFINITY: u32 = 0x7c00;
const F32_INFINITY: u32 = 0x7f80_0000;

/// The exponent's bias of f32 minus that of f16, at the exponent's place in f32.
const REBIAS: u32 = (127 - 15) << 23;

#[inline(always)]
fn f16_of(x: f32) -> u16 {
    let sign = x.to_bits() >> 16 & 0x8000;
    let size = x.to_bits() & !(1 << 31);
    // Half of the last place of an f16 is added, except for a tie that would round to odd.
    let normal = (size.wrapping_sub(REBIAS).wrapping_add(0xfff + (size >> 13 & 1)) >> 13).min(F16_INFINITY);
    // At ½ the last place is 2⁻²⁴, that of a denormal f16, so that the addition rounds.
    let denormal = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let nan = F16_INFINITY | 0x200 | (size >> 13 & 0x3ff);
    let code = if size < (127 - 14) << 23 { denormal } else { normal };
    (sign | if size > F32_INFINITY { nan } else { code }) as u16
}

#[inline(always)]
fn f32_of(x: u16) -> f32 {
    let sign = u32::from(x & 0x8000) << 16;
    let size = u32::from(x & 0x7fff);
    // A denormal f32 that is scaled by 2¹¹² becomes the normal one that the denormal f16 is.
    let finite = (f32::from_bits(size << 13) * f32::from_bits(REBIAS + (127 << 23))).to_bits();
    let quiet = u32::from(size > F16_INFINITY) << 22;
    let special = F32_INFINITY | size << 13 | quiet;
    f32::from_bits(sign | if size >= F16_INFINITY { special } else { finite })
}
