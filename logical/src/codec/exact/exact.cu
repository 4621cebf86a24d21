// Numbers as they are: the twin of mod.rs.

#include "device.cuh"
#include "blocks.cuh"

namespace {

struct Exact : Plain {
    using Plain::Plain;
    static constexpr u32 BITS = 32;
    static constexpr u32 BEYOND = F32_INFINITY;
    static constexpr u32 LARGEST = F32_LARGEST;

    static __device__ u32 code(f32 x) {
        return __float_as_uint(x);
    }

    static __device__ f32 number(u32 code) {
        return __uint_as_float(code);
    }
};

} // namespace

PLAIN_KERNELS(exact, Exact)
