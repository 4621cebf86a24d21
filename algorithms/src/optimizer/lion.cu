// Lion's step: the twin of lion.rs.

#include "device.cuh"

/// Returns a size with the sign of another number; 0 for one that has none, and NaN for NaN.
template <typename T>
__device__ inline T size_with_sign(T size, T of) {
    return of > 0 ? size : of < 0 ? -size : of;
}

template <typename T>
__device__ inline void step(
    const T* gradients, T* parameters, T* momentum, u64 len, T rate, T keep, T old, T fresh, T decay, T take) {
    for (u64 i = first_place(); i < len; i += stride()) {
        T g = gradients[i];
        T m = momentum[i];
        T direction = old * m + fresh * g;
        parameters[i] = canonical(keep * parameters[i] - size_with_sign(rate, direction));
        momentum[i] = canonical(decay * m + take * g);
    }
}

#define STEP(T, NAME)                                                                                            \
    extern "C" __global__ void NAME(                                                                             \
        const T* gradients, T* parameters, T* momentum, u64 len, T rate, T keep, T old, T fresh, T decay, T take) { \
        step(gradients, parameters, momentum, len, rate, keep, old, fresh, decay, take);                         \
    }

STEP(float, lion_step_f32)
STEP(double, lion_step_f64)

ENTRY(lion_step_f32)
ENTRY(lion_step_f64)
