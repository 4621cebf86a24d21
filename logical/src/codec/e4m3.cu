// Eight-bit floats of four bits of exponent, scaled block by block: the twin of e4m3.rs.

#include "device.cuh"
#include "blocks.cuh"

namespace {

/// The code of what is not a number.
constexpr u32 NOT_A_NUMBER = 0x7f;
/// The exponent of code 0 as f32 has it.
constexpr u32 ZERO = 127 - 7;

struct E4M3 : Scaled {
    using Scaled::Scaled;
    static constexpr u32 BITS = 8;

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
        if (!is_finite(x)) return NOT_A_NUMBER;
        u32 sign = __float_as_uint(x) >> 31 << 7;
        f32 y = scale > 0.0f ? lesser(fabsf(x) / scale, 448.0f) : 0.0f;
        // The eighth step is the smallest normal number, and has the code that follows.
        if (y < 1.0f / 64.0f) return sign | (u32)rintf(y * 512.0f);
        u32 bits = __float_as_uint(y);
        // The lowest three bits of what is left of the fraction are rounded to even; a carry goes to the exponent.
        u32 rounded = bits + 0x7ffff + (bits >> 20 & 1);
        return sign | ((rounded >> 20) - (ZERO << 3));
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
