// Combinations of two elements, and their scaling: the twin of physical/src/device/operations/reduce.rs. Include this after
// device.cuh for a kernel that reduces.
//
// 16-bit floats are widened to f32, combined there, and rounded once per combination.
#pragma once

// Integers wrap: they are added and multiplied modulo 2⁶⁴, and so modulo any smaller power.

template <typename T>
__device__ inline T sum(T x, T y) {
    return (T)((u64)x + (u64)y);
}

__device__ inline f32 sum(f32 x, f32 y) {
    return canonical(x + y);
}

__device__ inline f64 sum(f64 x, f64 y) {
    return canonical(x + y);
}

template <typename T>
__device__ inline T product(T x, T y) {
    return (T)((u64)x * (u64)y);
}

__device__ inline f32 product(f32 x, f32 y) {
    return canonical(x * y);
}

__device__ inline f64 product(f64 x, f64 y) {
    return canonical(x * y);
}

template <typename T>
__device__ inline T least(T x, T y) {
    return lesser(x, y);
}

__device__ inline f32 least(f32 x, f32 y) {
    return minimum(x, y);
}

__device__ inline f64 least(f64 x, f64 y) {
    return minimum(x, y);
}

template <typename T>
__device__ inline T most(T x, T y) {
    return greater(x, y);
}

__device__ inline f32 most(f32 x, f32 y) {
    return maximum(x, y);
}

__device__ inline f64 most(f64 x, f64 y) {
    return maximum(x, y);
}

// Bits are the same in any integer as in its bytes.

__device__ inline u8 bits_and(u8 x, u8 y) {
    return x & y;
}

__device__ inline u8 bits_or(u8 x, u8 y) {
    return x | y;
}

__device__ inline u8 bits_xor(u8 x, u8 y) {
    return x ^ y;
}

// Booleans are bytes of which all but 0 are true; results are 0 or 1.

__device__ inline u8 logical_and(u8 x, u8 y) {
    return x != 0 && y != 0;
}

__device__ inline u8 logical_or(u8 x, u8 y) {
    return (x | y) != 0;
}

__device__ inline u8 logical_xor(u8 x, u8 y) {
    return (x != 0) != (y != 0);
}

__device__ inline f64 scaled(f64 x, f64 factor) {
    return canonical(x * factor);
}

__device__ inline f32 scaled(f32 x, f64 factor) {
    return canonical((f32)((f64)x * factor));
}

template <typename T>
__device__ inline T plus_scaled(T to, T weight, T x) {
    return canonical(to + weight * x);
}

/// Returns a float of the type of the first one, and the one NaN for any NaN.
__device__ inline f16 rounded(f16, f32 x) {
    return canonical_f16(x);
}

__device__ inline bf16 rounded(bf16, f32 x) {
    return canonical_bf16(x);
}

#define OF_HALVES(TYPE)                                                                                                \
    __device__ inline TYPE sum(TYPE x, TYPE y) {                                                                       \
        return rounded(x, f32_of(x) + f32_of(y));                                                                      \
    }                                                                                                                  \
    __device__ inline TYPE product(TYPE x, TYPE y) {                                                                   \
        return rounded(x, f32_of(x) * f32_of(y));                                                                      \
    }                                                                                                                  \
    __device__ inline TYPE least(TYPE x, TYPE y) {                                                                     \
        return rounded(x, minimum(f32_of(x), f32_of(y)));                                                              \
    }                                                                                                                  \
    __device__ inline TYPE most(TYPE x, TYPE y) {                                                                      \
        return rounded(x, maximum(f32_of(x), f32_of(y)));                                                              \
    }                                                                                                                  \
    __device__ inline TYPE scaled(TYPE x, f32 factor) {                                                                \
        return rounded(x, f32_of(x) * factor);                                                                         \
    }                                                                                                                  \
    __device__ inline TYPE plus_scaled(TYPE to, f32 weight, TYPE x) {                                                  \
        return rounded(x, f32_of(to) + weight * f32_of(x));                                                            \
    }
OF_HALVES(f16)
OF_HALVES(bf16)
#undef OF_HALVES
