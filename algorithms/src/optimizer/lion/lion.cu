// The Lion step: the twin of mod.rs.

#include "device.cuh"
#include "elements.cuh"

/// Returns a size with the sign of another number; 0 if that is zero, and NaN for NaN.
template <typename T>
__device__ inline T size_with_sign(T size, T of) {
    return of > 0 ? size : of < 0 ? -size : of;
}

template <typename T>
__device__ inline void step(
    const T* gradients, T* parameters, T* momentum, u64 len, T rate, T keep, T old, T fresh, T decay, T take) {
    T* const arrays[] = {parameters, momentum, (T*)gradients};
    change<2>(len, arrays, [=](T(&at)[3]) {
        auto& [x, m, g] = at;
        T direction = old * m + fresh * g;
        x = canonical(keep * x - size_with_sign(rate, direction));
        m = canonical(decay * m + take * g);
    });
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
