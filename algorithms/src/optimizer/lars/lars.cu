// The LARS step: the twin of mod.rs. The first entry sums the squares of gradients and parameters by blocks.

#include "device.cuh"
#include "elements.cuh"
#include "sums.cuh"

template <typename T>
__device__ inline void norms(const T* gradients, const T* parameters, u64 len, double* sums) {
    u64 blocks = len == 0 ? 1 : (len + SUMMED - 1) / SUMMED;
    sum_blocks(len, sums, [=](u64 i) { return (double)gradients[i] * (double)gradients[i]; });
    sum_blocks(len, sums + blocks, [=](u64 i) { return (double)parameters[i] * (double)parameters[i]; });
}

/// Returns the factor of the learning rate of a tensor.
__device__ inline double quotient(const double* sums, double decay, double trust, double epsilon) {
    double gradients = sqrt(sums[0]);
    double parameters = sqrt(sums[1]);
    if (!(parameters > 0 && gradients > 0)) return 1.0;
    return trust * parameters / (gradients + decay * parameters + epsilon);
}

template <typename T>
__device__ inline void step(
    const T* gradients, T* parameters, T* momentum, u64 len, T keep, T decay, T rate, u32 nesterov) {
    T* const arrays[] = {parameters, momentum, (T*)gradients};
    change<2>(len, arrays, [=](T(&at)[3]) {
        auto& [x, u, g] = at;
        T d = rate * (g + decay * x);
        u = canonical(keep * u + d);
        x = canonical(x - (nesterov ? keep * u + d : u));
    });
}

#define NORMS(T, NAME)                                                                                           \
    extern "C" __global__ void NAME(const T* gradients, const T* parameters, u64 len, double* sums) {            \
        norms(gradients, parameters, len, sums);                                                                 \
    }

#define STEP(T, NAME)                                                                                            \
    extern "C" __global__ void NAME(                                                                             \
        const T* gradients, T* parameters, T* momentum, u64 len, T keep, T decay, double rate, double wide_decay, \
        double trust, double epsilon, u32 nesterov, u32 scaled, const double* sums) {                            \
        if (scaled) rate *= quotient(sums, wide_decay, trust, epsilon);                                          \
        step(gradients, parameters, momentum, len, keep, decay, (T)rate, nesterov);                              \
    }

NORMS(float, lars_norms_f32)
NORMS(double, lars_norms_f64)
STEP(float, lars_step_f32)
STEP(double, lars_step_f64)

extern "C" __global__ void lars_sums(const double* from, u64 len, u32 rows, double* to) {
    sum_sums(from, len, rows, to);
}

ENTRY(lars_norms_f32)
ENTRY(lars_norms_f64)
ENTRY(lars_step_f32)
ENTRY(lars_step_f64)
ENTRY(lars_sums)
