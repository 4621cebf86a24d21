// Element-wise reductions and scaling: the twin of reduce.rs. Open this to see what a queue does for
// WriteView::reduce, scale and add_scaled.
//
// 16-bit floats are widened to f32, combined there, and rounded once per combination.

#include "device.cuh"
#include "elements.cuh"

namespace {

// Integers wrap: they are added and multiplied modulo 2⁶⁴, and so modulo any smaller power.

template <typename T>
__device__ T sum(T x, T y) {
    return (T)((u64)x + (u64)y);
}

__device__ f32 sum(f32 x, f32 y) {
    return canonical(x + y);
}

__device__ f64 sum(f64 x, f64 y) {
    return canonical(x + y);
}

template <typename T>
__device__ T product(T x, T y) {
    return (T)((u64)x * (u64)y);
}

__device__ f32 product(f32 x, f32 y) {
    return canonical(x * y);
}

__device__ f64 product(f64 x, f64 y) {
    return canonical(x * y);
}

template <typename T>
__device__ T least(T x, T y) {
    return lesser(x, y);
}

__device__ f32 least(f32 x, f32 y) {
    return minimum(x, y);
}

__device__ f64 least(f64 x, f64 y) {
    return minimum(x, y);
}

template <typename T>
__device__ T most(T x, T y) {
    return greater(x, y);
}

__device__ f32 most(f32 x, f32 y) {
    return maximum(x, y);
}

__device__ f64 most(f64 x, f64 y) {
    return maximum(x, y);
}

__device__ f64 scaled(f64 x, f64 factor) {
    return canonical(x * factor);
}

__device__ f32 scaled(f32 x, f64 factor) {
    return canonical((f32)((f64)x * factor));
}

template <typename T>
__device__ T plus_scaled(T to, T weight, T x) {
    return canonical(to + weight * x);
}

/// Returns a float of the type of the first one, and the one NaN for any NaN.
__device__ f16 rounded(f16, f32 x) {
    return canonical_f16(x);
}

__device__ bf16 rounded(bf16, f32 x) {
    return canonical_bf16(x);
}

#define OF_HALVES(TYPE)                                                                                                \
    __device__ TYPE sum(TYPE x, TYPE y) {                                                                              \
        return rounded(x, f32_of(x) + f32_of(y));                                                                      \
    }                                                                                                                  \
    __device__ TYPE product(TYPE x, TYPE y) {                                                                          \
        return rounded(x, f32_of(x) * f32_of(y));                                                                      \
    }                                                                                                                  \
    __device__ TYPE least(TYPE x, TYPE y) {                                                                            \
        return rounded(x, minimum(f32_of(x), f32_of(y)));                                                              \
    }                                                                                                                  \
    __device__ TYPE most(TYPE x, TYPE y) {                                                                             \
        return rounded(x, maximum(f32_of(x), f32_of(y)));                                                              \
    }                                                                                                                  \
    __device__ TYPE scaled(TYPE x, f32 factor) {                                                                       \
        return rounded(x, f32_of(x) * factor);                                                                         \
    }                                                                                                                  \
    __device__ TYPE plus_scaled(TYPE to, f32 weight, TYPE x) {                                                         \
        return rounded(x, f32_of(to) + weight * f32_of(x));                                                            \
    }
OF_HALVES(f16)
OF_HALVES(bf16)

} // namespace

#define REDUCE(NAME, OP, TYPE)                                                                                         \
    extern "C" __global__ void reduce_##NAME##_##TYPE(const TYPE* from, TYPE* to, u64 len) {                           \
        const TYPE* const operands[2] = {to, from};                                                                    \
        compute(len, to, operands, [](const TYPE(&x)[2]) { return OP(x[0], x[1]); });                                  \
    }                                                                                                                  \
    ENTRY(reduce_##NAME##_##TYPE)

#define REDUCTIONS(TYPE)                                                                                               \
    REDUCE(sum, sum, TYPE)                                                                                             \
    REDUCE(product, product, TYPE)                                                                                     \
    REDUCE(min, least, TYPE)                                                                                           \
    REDUCE(max, most, TYPE)

REDUCTIONS(u8)
REDUCTIONS(i32)
REDUCTIONS(i64)
REDUCTIONS(f16)
REDUCTIONS(bf16)
REDUCTIONS(f32)
REDUCTIONS(f64)

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
