// Adam's direction, which several optimizers step along: the twin of Direction in algorithms/src/optimizer/adam/mod.rs.
// Include this after device.cuh.
#pragma once

__device__ inline float root(float x) {
    return sqrtf(x);
}

__device__ inline double root(double x) {
    return sqrt(x);
}

/// Constants of a step, in the type of the parameters.
template <typename T>
struct Direction {
    T beta1, take1, beta2, take2, unbias, root_unbias, epsilon;

    /// Updates an element's moments by its gradient.
    __device__ inline void update(T& m, T& v, T g) const {
        m = canonical(beta1 * m + take1 * g);
        v = canonical(beta2 * v + take2 * g * g);
    }

    /// Returns an element's direction, of about 1.
    __device__ inline T of(T m, T v) const {
        return unbias * m / (root(v) * root_unbias + epsilon);
    }
};

/// Parameters of an entry that are the constants of a step, and the arguments that make them one.
#define DIRECTION(T) T beta1, T take1, T beta2, T take2, T unbias, T root, T epsilon
#define DIRECTION_OF(T) \
    Direction<T> { beta1, take1, beta2, take2, unbias, root, epsilon }
