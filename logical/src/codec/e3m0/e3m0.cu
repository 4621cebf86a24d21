// Four bits for each number, its sign and the power of two next to it: the twin of mod.rs.

#include "device.cuh"
#include "blocks.cuh"
#include "divide.cuh"

namespace {

/// The exponent of code 0 as f32 has it: code 7 is 2⁰.
constexpr u32 ZERO = 127 - 7;

struct E3M0 : Scaled {
    static constexpr u32 BITS = 4;
    Divisor divisor;

    __device__ explicit E3M0(f32 scale) : Scaled(scale), divisor(scale) {}

    /// NaN if one of the numbers is not finite.
    static __device__ f32 value(u32 measure, u64) {
        return __uint_as_float(measure < F32_INFINITY ? measure : F32_NAN);
    }

    __device__ u32 code(f32 x) const {
        f32 part = fabsf(divisor.divide(x));
        // Half of the fraction's range, added, carries into the exponent from the middle between two powers on.
        u32 code = ((__float_as_uint(part) + (1 << 22)) >> 23) - ZERO;
        code = greater(code, 1u) | __float_as_uint(x) >> 31 << 3;
        // Not for NaN, too, which the scale says.
        return part >= 1.0f / 128.0f && part <= 1.0f ? code : 0;
    }

    __device__ f32 number(u32 code) const {
        u32 size = ((code & 7) + ZERO) << 23;
        f32 part = __uint_as_float((code & 7) == 0 ? 0 : code >> 3 << 31 | size);
        return canonical(scale * part);
    }
};

} // namespace

BLOCK_KERNELS(e3m0, E3M0)
CODE_KERNEL(e3m0, E3M0)
