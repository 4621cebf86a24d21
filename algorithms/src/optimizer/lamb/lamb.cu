// The LAMB step: the twin of mod.rs.
//
// The first entry updates the moments, and sums the squares of parameters and directions by blocks; the last one steps
// by the quotient of both norms. It recomputes the directions, with the same memory traffic as storing them.

#include "device.cuh"
#include "direction.cuh"
#include "elements.cuh"
#include "sums.cuh"

template <typename T>
__device__ inline void moments(
    const T* gradients, const T* parameters, T* first, T* second, u64 len, T decay, Direction<T> direction, double* sums) {
    u64 blocks = len == 0 ? 1 : (len + SUMMED - 1) / SUMMED;
    each_summed(len, [=](u64 block, u64 start, u64 end, bool exists) {
        double parameter_squares = 0;
        double direction_squares = 0;
        // Four are loaded before the first is stored: the compiler keeps loads behind stores that may alias them.
        constexpr u32 AHEAD = 4;
        u64 i = start + threadIdx.x % WIDE;
        auto take = [&](u64 i, T x, T m, T v, T gradient) {
            direction.update(m, v, gradient);
            first[i] = m;
            second[i] = v;
            T r = direction.of(m, v) + decay * x;
            parameter_squares += (double)x * (double)x;
            direction_squares += (double)r * (double)r;
        };
#pragma unroll 1
        for (; i + (AHEAD - 1) * WIDE < end; i += AHEAD * WIDE) {
            T x[AHEAD], m[AHEAD], v[AHEAD], gradient[AHEAD];
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                x[j] = parameters[i + j * WIDE];
                m[j] = first[i + j * WIDE];
                v[j] = second[i + j * WIDE];
                gradient[j] = gradients[i + j * WIDE];
            }
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) take(i + j * WIDE, x[j], m[j], v[j], gradient[j]);
        }
#pragma unroll 1
        for (; i < end; i += WIDE) take(i, parameters[i], first[i], second[i], gradients[i]);
        parameter_squares = lanes_summed(parameter_squares);
        direction_squares = lanes_summed(direction_squares);
        if (exists && threadIdx.x % WIDE == 0) {
            sums[block] = canonical(parameter_squares);
            sums[blocks + block] = canonical(direction_squares);
        }
    });
}

template <typename T>
__device__ inline void step(
    T* parameters, const T* first, const T* second, u64 len, T decay, Direction<T> direction, double rate, u32 scaled,
    const double* sums) {
    if (scaled) {
        double parameter_norm = sqrt(sums[0]);
        double direction_norm = sqrt(sums[1]);
        rate *= parameter_norm > 0 && direction_norm > 0 ? parameter_norm / direction_norm : 1.0;
    }
    T* const arrays[] = {parameters, (T*)first, (T*)second};
    change<1>(len, arrays, [=](T(&at)[3]) {
        auto& [x, m, v] = at;
        T r = direction.of(m, v) + decay * x;
        x = canonical(x - (T)rate * r);
    });
}

#define MOMENTS(T, NAME)                                                                                         \
    extern "C" __global__ void NAME(                                                                             \
        const T* gradients, const T* parameters, T* first, T* second, u64 len, T decay, DIRECTION(T), double* sums) { \
        moments(gradients, parameters, first, second, len, decay, DIRECTION_OF(T), sums);                        \
    }

#define STEP(T, NAME)                                                                                            \
    extern "C" __global__ void NAME(                                                                             \
        T* parameters, const T* first, const T* second, u64 len, T decay, DIRECTION(T), double rate, u32 scaled, \
        const double* sums) {                                                                                    \
        step(parameters, first, second, len, decay, DIRECTION_OF(T), rate, scaled, sums);                        \
    }

MOMENTS(float, lamb_moments_f32)
MOMENTS(double, lamb_moments_f64)
STEP(float, lamb_step_f32)
STEP(double, lamb_step_f64)

extern "C" __global__ void lamb_sums(const double* from, u64 len, u32 rows, double* to) {
    sum_sums(from, len, rows, to);
}

ENTRY(lamb_moments_f32)
ENTRY(lamb_moments_f64)
ENTRY(lamb_step_f32)
ENTRY(lamb_step_f64)
ENTRY(lamb_sums)
