// Arithmetic on moments: the twin of moment.rs.

#include "device.cuh"
#include "direction.cuh"
#include "elements.cuh"
#include "sums.cuh"

/// Changes every x to `f(x, y)`.
template <typename F>
__device__ inline void each(const float* y, float* x, u64 len, F f) {
    float* const arrays[] = {x, (float*)y};
    change<1>(len, arrays, [=](float(&at)[2]) { at[0] = f(at[0], at[1]); });
}

extern "C" __global__ void moment_first(const float* y, float* x, u64 len, float keep, float take) {
    each(y, x, len, [=](float x, float y) { return canonical(keep * x + take * y); });
}

extern "C" __global__ void moment_second(const float* y, float* x, u64 len, float keep, float take) {
    each(y, x, len, [=](float x, float y) { return canonical(keep * x + take * y * y); });
}

extern "C" __global__ void moment_limit(const float* y, float* x, u64 len, float clip) {
    each(y, x, len, [=](float x, float y) {
        if (y == 0) return 0.0f;
        float bound = clip / y;
        x = x > bound ? bound : x;
        x = x < -bound ? -bound : x;
        return canonical(bound != bound ? bound : x);
    });
}

extern "C" __global__ void moment_multiply(const float* y, float* x, u64 len) {
    each(y, x, len, [](float x, float y) { return canonical(x * y); });
}

extern "C" __global__ void moment_divide(const float* y, float* x, u64 len) {
    each(y, x, len, [](float x, float y) { return y == 0 ? 0.0f : canonical(x / y); });
}

extern "C" __global__ void moment_silence(const float* y, float* x, u64 len) {
    each(y, x, len, [](float x, float y) { return y == 0 ? 0.0f : canonical(x); });
}

extern "C" __global__ void moment_adam(
    const float* first, const float* second, float* to, u64 len, float unbias, float root_unbias, float epsilon) {
    const float* const moments[] = {first, second};
    compute(len, to, moments, [=](const float(&x)[2]) {
        return canonical(unbias * x[0] / (root(x[1]) * root_unbias + epsilon));
    });
}

extern "C" __global__ void moment_frozen(const float* first, const float* scale, float* to, u64 len, float unbias) {
    const float* const factors[] = {scale, first};
    compute(len, to, factors, [=](const float(&x)[2]) { return canonical(unbias * (x[0] * x[1])); });
}

/// Sums the second moments of a tensor by blocks.
extern "C" __global__ void moment_sum(const float* second, u64 len, double* to) {
    sum_blocks(len, to, [=](u64 i) { return (double)second[i]; });
}

extern "C" __global__ void moment_sums(const double* from, u64 len, u32 rows, double* to) {
    sum_sums(from, len, rows, to);
}

/// Replaces the second moments of a tensor by their scale.
extern "C" __global__ void moment_scale(
    float* second, u64 len, double floor, float root_unbias, float epsilon, const double* sum) {
    float least = (float)(floor * sqrt(*sum / (double)len)) * root_unbias;
    float* const arrays[] = {second};
    change<1>(len, arrays, [=](float(&at)[1]) {
        float own = root(at[0]) * root_unbias;
        float deviation = own > least || least != least ? own : least;
        at[0] = deviation == 0 ? 0.0f : canonical(1.0f / (deviation + epsilon));
    });
}

ENTRY(moment_first)
ENTRY(moment_second)
ENTRY(moment_limit)
ENTRY(moment_multiply)
ENTRY(moment_divide)
ENTRY(moment_silence)
ENTRY(moment_adam)
ENTRY(moment_frozen)
ENTRY(moment_sum)
ENTRY(moment_sums)
ENTRY(moment_scale)
