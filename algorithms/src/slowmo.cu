// SlowMo's step at the end of a period: the twin of slowmo.rs.

#include "device.cuh"

template <typename T>
__device__ inline void outer(T* parameters, T* start, T* momentum, u64 len, T step, T per_rate, T beta) {
    for (u64 i = first_place(); i < len; i += stride()) {
        T begun = start[i];
        T u = canonical(beta * momentum[i] + (begun - parameters[i]) * per_rate);
        T next = canonical(begun - step * u);
        momentum[i] = u;
        start[i] = next;
        parameters[i] = next;
    }
}

#define STEP(T, NAME)                                                                                            \
    extern "C" __global__ void NAME(                                                                             \
        T* parameters, T* start, T* momentum, u64 len, T step, T per_rate, T beta) {                             \
        outer(parameters, start, momentum, len, step, per_rate, beta);                                           \
    }

STEP(float, slowmo_step_f32)
STEP(double, slowmo_step_f64)

ENTRY(slowmo_step_f32)
ENTRY(slowmo_step_f64)
