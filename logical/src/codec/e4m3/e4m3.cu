// Eight-bit floats of four bits of exponent, scaled block by block: the twin of mod.rs.

#include "device.cuh"
#include "blocks.cuh"
#include "divide.cuh"

namespace {

/// The code of what is not a number.
constexpr u32 NOT_A_NUMBER = 0x7f;
/// The exponent of code 0 as f32 has it.
constexpr u32 ZERO = 127 - 7;

struct E4M3 : Scaled {
    static constexpr u32 BITS = 8;
    Divisor divisor;

    __device__ explicit E4M3(f32 scale) : Scaled(scale), divisor(scale) {}

    /// What is not finite has a code, and does not spoil the scale.
    struct Lane : Scaled::Lane {
        __device__ void add(u32 at, f32 x) {
            if (is_finite(x)) Scaled::Lane::add(at, x);
        }
    };

    static __device__ f32 value(u32 measure, u64) {
        return scale_to(measure, 448.0f);
    }

    __device__ u32 code(f32 x) const {
        u32 sign = __float_as_uint(x) >> 31 << 7;
        f32 y = scale > 0.0f ? lesser(divisor.divide(fabsf(x)), 448.0f) : 0.0f;
        // Beside 1.5 × 2²³ the last place is 1, and the addition rounds. The eighth step is the smallest normal number,
        // and has the code that follows.
        u32 denormal = __float_as_uint(y * 512.0f + 12582912.0f) & 15;
        u32 bits = __float_as_uint(y);
        // The lowest three bits of what is left of the fraction are rounded to even; a carry goes to the exponent.
        u32 normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (ZERO << 3);
        u32 code = sign | (y < 1.0f / 64.0f ? denormal : normal);
        return is_finite(x) ? code : NOT_A_NUMBER;
    }

    __device__ f32 number(u32 code) const {
        u32 size = code & 0x7f;
        f32 denormal = (f32)size * (1.0f / 512.0f);
        f32 x = size < 8 ? denormal : __uint_as_float(size == NOT_A_NUMBER ? F32_NAN : (size << 20) + (ZERO << 23));
        return canonical(scale * __uint_as_float(__float_as_uint(x) | code >> 7 << 31));
    }
};

} // namespace

BLOCK_KERNELS(e4m3, E4M3)
CODE_KERNEL(e4m3, E4M3)
