// What codecs share that send some of the numbers only. Include this after device.cuh.
#pragma once

// How NaN and infinity are treated, as the host's NotFinite.
constexpr u32 REFUSE = 0;
constexpr u32 PROPAGATE = 1;
constexpr u32 SATURATE = 2;

/// Returns 0 for NaN, and the largest number for what exceeds it: not_finite.rs.
__device__ inline float saturated(float x) {
    float largest = __uint_as_float(F32_LARGEST);
    if (x != x) return 0.0f;
    return x < -largest ? -largest : x > largest ? largest : x;
}

/// Sets a run of numbers to 0, with all threads of the grid.
__device__ inline void clear_run(float* to, u64 len) {
    for (u64 i = first_place(); i < len; i += stride()) to[i] = 0.0f;
}
