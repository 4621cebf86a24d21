// Norms, distances, and the first element that is not finite: the twin of measure.rs. Open it for what the host asks of
// numbers on a GPU.

#include "device.cuh"
#include "elements.cuh"
#include "sums.cuh"

template <typename T>
__device__ inline void squares(const T* x, u64 len, double* to) {
    sum_blocks(len, to, [=](u64 i) { return (double)x[i] * (double)x[i]; });
}

template <typename T>
__device__ inline void distance(const T* x, const T* y, u64 len, double* to) {
    sum_blocks(len, to, [=](u64 i) {
        double apart = (double)x[i] - (double)y[i];
        return apart * apart;
    });
}

/// Lowers what is found to the first element of this thread that is not finite.
template <typename T>
__device__ inline void find(const T* x, u64 len, u64* found) {
    u64 first = len;
    each_element(x, len, [&](T x, u64 i) {
        // NaN and infinity are what their difference from themselves is not 0 of.
        if (!(x - x == 0) && i < first) first = i;
    });
    if (first < len) atomicMin(found, first);
}

extern "C" __global__ void measure_squares_f32(const float* x, u64 len, double* to) {
    squares(x, len, to);
}

extern "C" __global__ void measure_squares_f64(const double* x, u64 len, double* to) {
    squares(x, len, to);
}

extern "C" __global__ void measure_distance_f32(const float* x, const float* y, u64 len, double* to) {
    distance(x, y, len, to);
}

extern "C" __global__ void measure_distance_f64(const double* x, const double* y, u64 len, double* to) {
    distance(x, y, len, to);
}

extern "C" __global__ void measure_sums(const double* from, u64 len, u32 rows, double* to) {
    sum_sums(from, len, rows, to);
}

/// Stores that nothing is found: −1, which is more than any index.
extern "C" __global__ void measure_none(u64* found) {
    *found = ~(u64)0;
}

extern "C" __global__ void measure_not_finite_f32(const float* x, u64 len, u64* found) {
    find(x, len, found);
}

extern "C" __global__ void measure_not_finite_f64(const double* x, u64 len, u64* found) {
    find(x, len, found);
}

ENTRY(measure_squares_f32)
ENTRY(measure_squares_f64)
ENTRY(measure_distance_f32)
ENTRY(measure_distance_f64)
ENTRY(measure_sums)
ENTRY(measure_none)
ENTRY(measure_not_finite_f32)
ENTRY(measure_not_finite_f64)
