// Steps of stochastic gradient descent: the twin of mod.rs.

#include "device.cuh"
#include "elements.cuh"

template <typename T>
__device__ inline void plain(const T* gradients, T* parameters, u64 len, T rate, T decay) {
    T* const arrays[] = {parameters, (T*)gradients};
    change<1>(len, arrays, [=](T(&at)[2]) {
        auto& [x, g] = at;
        x = canonical(x - rate * (g + decay * x));
    });
}

template <typename T>
__device__ inline void with_momentum(
    const T* gradients, T* parameters, T* momentum, u64 len, T rate, T decay, T keep, T take, u32 nesterov) {
    T* const arrays[] = {parameters, momentum, (T*)gradients};
    change<2>(len, arrays, [=](T(&at)[3]) {
        auto& [x, u, g] = at;
        T d = g + decay * x;
        u = canonical(keep * u + take * d);
        x = canonical(x - rate * (nesterov ? d + keep * u : u));
    });
}

#define PLAIN(T, NAME)                                                                                           \
    extern "C" __global__ void NAME(const T* gradients, T* parameters, u64 len, T rate, T decay) {               \
        plain(gradients, parameters, len, rate, decay);                                                          \
    }

#define WITH_MOMENTUM(T, NAME)                                                                                   \
    extern "C" __global__ void NAME(                                                                             \
        const T* gradients, T* parameters, T* momentum, u64 len, T rate, T decay, T keep, T take, u32 nesterov) {\
        with_momentum(gradients, parameters, momentum, len, rate, decay, keep, take, nesterov);                  \
    }

PLAIN(float, sgd_plain_f32)
PLAIN(double, sgd_plain_f64)
WITH_MOMENTUM(float, sgd_momentum_f32)
WITH_MOMENTUM(double, sgd_momentum_f64)

ENTRY(sgd_plain_f32)
ENTRY(sgd_plain_f64)
ENTRY(sgd_momentum_f32)
ENTRY(sgd_momentum_f64)
