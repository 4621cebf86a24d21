// Steps of stochastic gradient descent: the twin of sgd.rs.

#include "device.cuh"

template <typename T>
__device__ inline void plain(const T* gradients, T* parameters, u64 len, T rate, T decay) {
    for (u64 i = first_place(); i < len; i += stride()) {
        T x = parameters[i];
        parameters[i] = canonical(x - rate * (gradients[i] + decay * x));
    }
}

template <typename T>
__device__ inline void with_momentum(
    const T* gradients, T* parameters, T* momentum, u64 len, T rate, T decay, T keep, T take, u32 nesterov) {
    for (u64 i = first_place(); i < len; i += stride()) {
        T x = parameters[i];
        T d = gradients[i] + decay * x;
        T u = canonical(keep * momentum[i] + take * d);
        momentum[i] = u;
        parameters[i] = canonical(x - rate * (nesterov ? d + keep * u : u));
    }
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
