// The AdamW step: the twin of mod.rs.

#include "device.cuh"
#include "direction.cuh"
#include "elements.cuh"

template <typename T>
__device__ inline void step(
    const T* gradients, T* parameters, T* first, T* second, u64 len, T rate, T keep, Direction<T> direction) {
    T* const arrays[] = {parameters, first, second, (T*)gradients};
    change<3>(len, arrays, [=](T(&at)[4]) {
        auto& [x, m, v, g] = at;
        direction.update(m, v, g);
        x = canonical(keep * x - rate * direction.of(m, v));
    });
}

#define STEP(T, NAME)                                                                                            \
    extern "C" __global__ void NAME(                                                                             \
        const T* gradients, T* parameters, T* first, T* second, u64 len, T rate, T keep, DIRECTION(T)) {         \
        step(gradients, parameters, first, second, len, rate, keep, DIRECTION_OF(T));                            \
    }

STEP(float, adamw_step_f32)
STEP(double, adamw_step_f64)

ENTRY(adamw_step_f32)
ENTRY(adamw_step_f64)
