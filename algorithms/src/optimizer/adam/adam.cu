// The Adam step: the twin of mod.rs.

#include "device.cuh"
#include "direction.cuh"
#include "elements.cuh"

template <typename T>
__device__ inline void step(
    const T* gradients, T* parameters, T* first, T* second, u64 len, T rate, T decay, Direction<T> direction) {
    T* const arrays[] = {parameters, first, second, (T*)gradients};
    change<3>(len, arrays, [=](T(&at)[4]) {
        auto& [x, m, v, g] = at;
        direction.update(m, v, g + decay * x);
        x = canonical(x - rate * direction.of(m, v));
    });
}

#define STEP(T, NAME)                                                                                            \
    extern "C" __global__ void NAME(                                                                             \
        const T* gradients, T* parameters, T* first, T* second, u64 len, T rate, T decay, DIRECTION(T)) {        \
        step(gradients, parameters, first, second, len, rate, decay, DIRECTION_OF(T));                           \
    }

STEP(float, adam_step_f32)
STEP(double, adam_step_f64)

ENTRY(adam_step_f32)
ENTRY(adam_step_f64)
