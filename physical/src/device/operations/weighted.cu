// Weighted sums of several runs: the twin of weighted.rs. Open this to see what a queue does for
// WriteView::weighted_sum.
//
// Up to 8 terms are parameters of one launch. More are written to a table in device memory first, 8 at a time, which
// the launch behind them reads. Either way every run is read once, and the result is written once.

#include "device.cuh"
#include "elements.cuh"

namespace {

/// Terms that are parameters.
constexpr u32 MOST = 8;

/// What elements are summed in. The first term is not added to zero: −0 would become +0.
template <typename T>
struct Sum {
    typedef f32 Wide;
};

template <>
struct Sum<f32> {
    typedef f64 Wide;
};

template <>
struct Sum<f64> {
    typedef f64 Wide;
};

__device__ f32 wide(f16 x) {
    return f32_of(x);
}

__device__ f32 wide(bf16 x) {
    return f32_of(x);
}

__device__ f64 wide(f32 x) {
    return x;
}

__device__ f64 wide(f64 x) {
    return x;
}

__device__ void round(f32 sum, f16& to) {
    to = canonical_f16(sum);
}

__device__ void round(f32 sum, bf16& to) {
    to = canonical_bf16(sum);
}

__device__ void round(f64 sum, f32& to) {
    to = canonical((f32)sum);
}

__device__ void round(f64 sum, f64& to) {
    to = canonical(sum);
}

/// A term whose elements lie in device memory, as the table has it.
template <typename T>
struct Term {
    const T* from;
    typename Sum<T>::Wide weight;
};

/// Sums terms that are parameters. Those from `count` on are `to`, and not read.
template <typename T, typename W>
__device__ void sum_of(u32 count, u64 len, T* to, const T* const (&from)[MOST], const W (&weight)[MOST]) {
    each_run(len, to, from, [=](auto load, u64 at) {
        constexpr u32 N = decltype(load)::SIZE;
        Run<T, N> loaded[MOST];
#pragma unroll
        for (u32 i = 0; i < MOST; i++) {
            if (i < count) loaded[i] = load(from[i], at);
        }
        W sum[N] = {};
#pragma unroll
        for (u32 i = 0; i < MOST; i++) {
            if (i >= count) break;
#pragma unroll
            for (u32 k = 0; k < N; k++) {
                W product = weight[i] * wide(loaded[i].x[k]);
                sum[k] = i == 0 ? product : sum[k] + product;
            }
        }
        Run<T, N> out;
#pragma unroll
        for (u32 k = 0; k < N; k++) round(sum[k], out.x[k]);
        *(Run<T, N>*)(to + at) = out;
    });
}

/// Sums terms of the table.
template <typename T>
__device__ void sum_of_table(u32 count, u64 len, T* to, const Term<T>* table) {
    for (u64 at = first_place(); at < len; at += stride()) {
        auto sum = table[0].weight * wide(table[0].from[at]);
        for (u32 i = 1; i < count; i++) sum += table[i].weight * wide(table[i].from[at]);
        round(sum, to[at]);
    }
}

} // namespace

// Each run stands beside its weight, as terms do.
#define PARAMETERS(TYPE, WIDE)                                                                                         \
    const TYPE *a, WIDE of_a, const TYPE *b, WIDE of_b, const TYPE *c, WIDE of_c, const TYPE *d, WIDE of_d,            \
        const TYPE *e, WIDE of_e, const TYPE *f, WIDE of_f, const TYPE *g, WIDE of_g, const TYPE *h, WIDE of_h
#define RUNS {a, b, c, d, e, f, g, h}
#define WEIGHTS {of_a, of_b, of_c, of_d, of_e, of_f, of_g, of_h}

#define WEIGHTED(TYPE, WIDE)                                                                                           \
    extern "C" __global__ void weighted_sum_##TYPE(TYPE* to, u64 len, u32 count, PARAMETERS(TYPE, WIDE)) {             \
        const TYPE* const runs[MOST] = RUNS;                                                                           \
        const WIDE weights[MOST] = WEIGHTS;                                                                            \
        sum_of(count, len, to, runs, weights);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void weighted_terms_##TYPE(Term<TYPE>* table, PARAMETERS(TYPE, WIDE)) {                      \
        const TYPE* const runs[MOST] = RUNS;                                                                           \
        const WIDE weights[MOST] = WEIGHTS;                                                                            \
        for (u32 i = 0; i < MOST; i++) table[i] = {runs[i], weights[i]};                                               \
    }                                                                                                                  \
    extern "C" __global__ void weighted_table_##TYPE(TYPE* to, u64 len, u32 count, const Term<TYPE>* table) {          \
        sum_of_table(count, len, to, table);                                                                           \
    }                                                                                                                  \
    ENTRY(weighted_sum_##TYPE)                                                                                         \
    ENTRY(weighted_terms_##TYPE)                                                                                       \
    ENTRY(weighted_table_##TYPE)

WEIGHTED(f16, f32)
WEIGHTED(bf16, f32)
WEIGHTED(f32, f64)
WEIGHTED(f64, f64)
