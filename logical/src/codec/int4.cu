// Four bits for each number, in equal steps up to the largest of its block: the twin of int4.rs.

#include "device.cuh"
#include "blocks.cuh"

namespace {

struct Int4 : Scaled {
    using Scaled::Scaled;
    static constexpr u32 BITS = 4;

    /// NaN if one of the numbers is not finite.
    static __device__ f32 value(u32 measure, u64) {
        return measure < F32_INFINITY ? scale_to(measure, 7.0f) : __uint_as_float(F32_NAN);
    }

    __device__ u32 code(f32 x) const {
        f32 steps = scale > 0.0f ? greater(lesser(rintf(x / scale), 7.0f), -7.0f) : 0.0f;
        return (u32)(steps + 8.0f);
    }

    __device__ f32 number(u32 code) const {
        return canonical(scale * ((f32)code - 8.0f));
    }
};

} // namespace

BLOCK_KERNELS(int4, Int4)
