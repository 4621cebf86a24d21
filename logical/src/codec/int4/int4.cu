// Four bits for each number, in equal steps up to the largest of its block: the twin of mod.rs.

#include "device.cuh"
#include "blocks.cuh"
#include "divide.cuh"

namespace {

struct Int4 : Scaled {
    static constexpr u32 BITS = 4;
    Divisor divisor;

    __device__ explicit Int4(f32 scale) : Scaled(scale), divisor(scale) {}

    /// NaN if one of the numbers is not finite.
    static __device__ f32 value(u32 measure, u64) {
        return measure < F32_INFINITY ? scale_to(measure, 7.0f) : __uint_as_float(F32_NAN);
    }

    __device__ u32 code(f32 x) const {
        f32 steps = greater(lesser(divisor.divide(x), 7.0f), -7.0f);
        // Beside 1.5 × 2²³ the last place is 1, and the addition rounds.
        return __float_as_uint((scale > 0.0f ? steps : 0.0f) + (12582912.0f + 8.0f)) & 15;
    }

    __device__ f32 number(u32 code) const {
        return canonical(scale * ((f32)code - 8.0f));
    }
};

} // namespace

BLOCK_KERNELS(int4, Int4)
CODE_KERNEL(int4, Int4)
