// Element-wise reductions and scaling: the twin of reduce.rs. Open this to see what a queue does for
// WriteView::reduce, scale and add_scaled.

#include "device.cuh"
#include "elements.cuh"
#include "operators.cuh"

#define REDUCE(NAME, OP, TYPE)                                                                                         \
    extern "C" __global__ void reduce_##NAME##_##TYPE(const TYPE* from, TYPE* to, u64 len) {                           \
        const TYPE* const operands[2] = {to, from};                                                                    \
        compute(len, to, operands, [](const TYPE(&x)[2]) { return OP(x[0], x[1]); });                                  \
    }                                                                                                                  \
    ENTRY(reduce_##NAME##_##TYPE)

#define ORDERED(TYPE)                                                                                                  \
    REDUCE(min, least, TYPE)                                                                                           \
    REDUCE(max, most, TYPE)

#define REDUCTIONS(TYPE)                                                                                               \
    REDUCE(sum, sum, TYPE)                                                                                             \
    REDUCE(product, product, TYPE)                                                                                     \
    ORDERED(TYPE)

// Sums and products of u8 have the bits of those of i8.
REDUCTIONS(u8)
ORDERED(i8)
REDUCTIONS(i16)
REDUCTIONS(i32)
REDUCTIONS(i64)
REDUCTIONS(f16)
REDUCTIONS(bf16)
REDUCTIONS(f32)
REDUCTIONS(f64)

REDUCE(band, bits_and, u8)
REDUCE(bor, bits_or, u8)
REDUCE(bxor, bits_xor, u8)
REDUCE(land, logical_and, u8)
REDUCE(lor, logical_or, u8)
REDUCE(lxor, logical_xor, u8)

#define SCALE(TYPE, WIDE)                                                                                              \
    extern "C" __global__ void reduce_scale_##TYPE(WIDE factor, TYPE* to, u64 len) {                                   \
        const TYPE* const operands[1] = {to};                                                                          \
        compute(len, to, operands, [=](const TYPE(&x)[1]) { return scaled(x[0], factor); });                           \
    }                                                                                                                  \
    ENTRY(reduce_scale_##TYPE)

SCALE(f16, f32)
SCALE(bf16, f32)
SCALE(f32, f64)
SCALE(f64, f64)

#define ADD_SCALED(TYPE, WIDE)                                                                                         \
    extern "C" __global__ void reduce_add_scaled_##TYPE(WIDE weight, const TYPE* from, TYPE* to, u64 len) {            \
        const TYPE* const operands[2] = {to, from};                                                                    \
        compute(len, to, operands, [=](const TYPE(&x)[2]) { return plus_scaled(x[0], weight, x[1]); });                \
    }                                                                                                                  \
    ENTRY(reduce_add_scaled_##TYPE)

ADD_SCALED(f16, f32)
ADD_SCALED(bf16, f32)
ADD_SCALED(f32, f32)
ADD_SCALED(f64, f64)
