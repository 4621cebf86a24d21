// One part of everyone's contribution, combined in one pass: the twin of shm/collectives/reduction.rs. Open this to see what a rank
// reads and writes of an all-reduce between GPUs that reach each other's memory.
//
// Contributions come in the order in which they are combined: along a ring one after the other; by a balanced tree
// neighbours first, then neighbouring pairs, and so on. Up to 4 along a ring are parameters of one launch, which loads
// 16 bytes of each at once. All others are written to a table in device memory first, 4 at a time, and combined element
// by element: trees are for results of 256 KiB at most.

#include "device.cuh"
#include "elements.cuh"
#include "operators.cuh"

namespace {

/// Contributions that are parameters.
constexpr u32 MOST = 4;

/// Levels of the largest tree, of 64 leaves.
constexpr u32 LEVELS = 6;

#define COMBINATION(NAME, OP)                                                                                          \
    struct NAME {                                                                                                      \
        template <typename T>                                                                                          \
        __device__ T prepare(T x) const {                                                                              \
            return x;                                                                                                  \
        }                                                                                                              \
        template <typename T>                                                                                          \
        __device__ T operator()(T x, T y) const {                                                                      \
            return OP(x, y);                                                                                           \
        }                                                                                                              \
        template <typename T>                                                                                          \
        __device__ T finish(T x) const {                                                                               \
            return x;                                                                                                  \
        }                                                                                                              \
    };
COMBINATION(Sum, sum)
COMBINATION(Product, product)
COMBINATION(Min, least)
COMBINATION(Max, most)
COMBINATION(BitAnd, bits_and)
COMBINATION(BitOr, bits_or)
COMBINATION(BitXor, bits_xor)
COMBINATION(LogicalAnd, logical_and)
COMBINATION(LogicalOr, logical_or)
COMBINATION(LogicalXor, logical_xor)

/// The mean: 16-bit floats are divided before they are added, as their sum might be too large; others after that.
template <typename W>
struct Mean {
    W factor;

    __device__ f16 prepare(f16 x) const {
        return scaled(x, factor);
    }
    __device__ bf16 prepare(bf16 x) const {
        return scaled(x, factor);
    }
    __device__ f32 prepare(f32 x) const {
        return x;
    }
    __device__ f64 prepare(f64 x) const {
        return x;
    }
    template <typename T>
    __device__ T operator()(T x, T y) const {
        return sum(x, y);
    }
    __device__ f16 finish(f16 x) const {
        return x;
    }
    __device__ bf16 finish(bf16 x) const {
        return x;
    }
    __device__ f32 finish(f32 x) const {
        return scaled(x, factor);
    }
    __device__ f64 finish(f64 x) const {
        return scaled(x, factor);
    }
};

/// Combines a run of contributions that are parameters. Those from `count` on are not read.
template <u32 N, typename T, typename C>
__device__ inline void combine_run(u32 count, u64 at, T* to, const T* const (&from)[MOST], C combine) {
    Run<T, N> x[MOST];
#pragma unroll
    for (u32 i = 0; i < MOST; i++) {
        if (i < count) x[i] = Load<N, true>()(from[i], at);
    }
    Run<T, N> out;
#pragma unroll
    for (u32 k = 0; k < N; k++) out.x[k] = combine.prepare(x[0].x[k]);
#pragma unroll
    for (u32 i = 1; i < MOST; i++) {
        if (i >= count) break;
#pragma unroll
        for (u32 k = 0; k < N; k++) out.x[k] = combine(out.x[k], combine.prepare(x[i].x[k]));
    }
#pragma unroll
    for (u32 k = 0; k < N; k++) out.x[k] = combine.finish(out.x[k]);
    *(Run<T, N>*)(to + at) = out;
}

/// Combines contributions that are parameters, along a ring: in runs where all are aligned alike.
template <typename T, typename C>
__device__ void combine_runs(u32 count, u64 len, T* to, const T* const (&from)[MOST], C combine) {
    constexpr u32 N = 16 / sizeof(T);
    u64 head = (0 - (u64)to) % 16 / sizeof(T);
    bool alike = true;
#pragma unroll
    for (u32 i = 0; i < MOST; i++) alike &= i >= count || ((u64)from[i] - (u64)to) % 16 == 0;
    u64 runs = alike && head < len ? (len - head) / N : 0;
    for (u64 i = first_place(); i < runs; i += stride()) combine_run<N>(count, head + i * N, to, from, combine);
    u64 rest = len - runs * N;
    for (u64 i = first_place(); i < rest; i += stride()) {
        combine_run<1>(count, i < head ? i : i + runs * N, to, from, combine);
    }
}

/// Combines contributions of a table: `count` along a ring if there are no `leaves`. A tree has what folds into a leaf
/// as many places behind it as it has leaves, or null.
template <typename T, typename C>
__device__ void combine_table(u32 count, u32 leaves, u64 len, T* to, const T* const* from, C combine) {
    for (u64 at = first_place(); at < len; at += stride()) {
        T result = combine.prepare(from[0][at]);
        if (leaves == 0) {
            for (u32 i = 1; i < count; i++) result = combine(result, combine.prepare(from[i][at]));
        }
        T partial[LEVELS] = {};
        for (u32 i = 0; i < leaves; i++) {
            result = combine.prepare(from[i][at]);
            if (i + leaves < count && from[i + leaves]) result = combine(result, combine.prepare(from[i + leaves][at]));
            bool is_right = true;
#pragma unroll
            for (u32 level = 0; level < LEVELS; level++) {
                if (!is_right) continue;
                is_right = i >> level & 1;
                if (is_right) {
                    result = combine(partial[level], result);
                } else {
                    partial[level] = result;
                }
            }
        }
        to[at] = combine.finish(result);
    }
}

} // namespace

#define FROM(TYPE) const TYPE *a, const TYPE *b, const TYPE *c, const TYPE *d
#define RUNS {a, b, c, d}

#define COMBINE(NAME, OP, TYPE)                                                                                        \
    extern "C" __global__ void combine_##NAME##_##TYPE(u32 count, u64 len, TYPE* to, FROM(TYPE)) {                     \
        const TYPE* const runs[MOST] = RUNS;                                                                           \
        combine_runs(count, len, to, runs, OP());                                                                      \
    }                                                                                                                  \
    extern "C" __global__ void combine_table_##NAME##_##TYPE(u32 count, u32 leaves, u64 len, TYPE* to,                 \
                                                             const TYPE* const* table) {                               \
        combine_table(count, leaves, len, to, table, OP());                                                            \
    }                                                                                                                  \
    ENTRY(combine_##NAME##_##TYPE)                                                                                     \
    ENTRY(combine_table_##NAME##_##TYPE)

#define ORDERED(TYPE)                                                                                                  \
    COMBINE(min, Min, TYPE)                                                                                            \
    COMBINE(max, Max, TYPE)

#define COMBINATIONS(TYPE)                                                                                             \
    COMBINE(sum, Sum, TYPE)                                                                                            \
    COMBINE(product, Product, TYPE)                                                                                    \
    ORDERED(TYPE)

// Sums and products of u8 have the bits of those of i8.
COMBINATIONS(u8)
ORDERED(i8)
COMBINATIONS(i16)
COMBINATIONS(i32)
COMBINATIONS(i64)
COMBINATIONS(f16)
COMBINATIONS(bf16)
COMBINATIONS(f32)
COMBINATIONS(f64)

COMBINE(band, BitAnd, u8)
COMBINE(bor, BitOr, u8)
COMBINE(bxor, BitXor, u8)
COMBINE(land, LogicalAnd, u8)
COMBINE(lor, LogicalOr, u8)
COMBINE(lxor, LogicalXor, u8)

#define MEAN(TYPE, WIDE)                                                                                               \
    extern "C" __global__ void combine_mean_##TYPE(WIDE factor, u32 count, u64 len, TYPE* to, FROM(TYPE)) {            \
        const TYPE* const runs[MOST] = RUNS;                                                                           \
        combine_runs(count, len, to, runs, Mean<WIDE>{factor});                                                        \
    }                                                                                                                  \
    extern "C" __global__ void combine_table_mean_##TYPE(WIDE factor, u32 count, u32 leaves, u64 len, TYPE* to,        \
                                                         const TYPE* const* table) {                                   \
        combine_table(count, leaves, len, to, table, Mean<WIDE>{factor});                                              \
    }                                                                                                                  \
    ENTRY(combine_mean_##TYPE)                                                                                         \
    ENTRY(combine_table_mean_##TYPE)

MEAN(f16, f32)
MEAN(bf16, f32)
MEAN(f32, f64)
MEAN(f64, f64)

extern "C" __global__ void combine_entries(const u8** table, FROM(u8)) {
    const u8* const runs[MOST] = RUNS;
    for (u32 i = 0; i < MOST; i++) table[i] = runs[i];
}
ENTRY(combine_entries)
