// 16-bit floats: the twin of mod.rs.

#include "device.cuh"
#include "blocks.cuh"

namespace {

/// IEEE half precision, in which 65520 and more is infinite.
struct F16 : Plain {
    using Plain::Plain;
    static constexpr u32 BITS = 16;
    static constexpr u32 BEYOND = 0x477ff000;
    static constexpr u32 LARGEST = 0x477fe000;

    static __device__ u32 code(f32 x) {
        return f16_of(x).bits;
    }

    static __device__ f32 number(u32 code) {
        return f32_of(f16{(u16)code});
    }
};

/// Bfloat16, in which what is within 2⁻⁹ of the largest f32 is infinite.
struct BF16 : Plain {
    using Plain::Plain;
    static constexpr u32 BITS = 16;
    static constexpr u32 BEYOND = 0x7f7f8000;
    static constexpr u32 LARGEST = 0x7f7f0000;

    static __device__ u32 code(f32 x) {
        return bf16_of(x).bits;
    }

    static __device__ f32 number(u32 code) {
        return f32_of(bf16{(u16)code});
    }
};

} // namespace

PLAIN_KERNELS(half_f16, F16)
PLAIN_KERNELS(half_bf16, BF16)
