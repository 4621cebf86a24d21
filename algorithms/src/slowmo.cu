// The SlowMo step at the end of a period: the twin of slowmo.rs.

#include "device.cuh"
#include "elements.cuh"

template <typename T>
__device__ inline void outer(T* parameters, T* start, T* momentum, u64 len, T step, T per_rate, T beta) {
    T* const arrays[] = {parameters, start, momentum};
    change<3>(len, arrays, [=](T(&at)[3]) {
        auto& [x, begun, u] = at;
        u = canonical(beta * u + (begun - x) * per_rate);
        x = canonical(begun - step * u);
        begun = x;
    });
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
