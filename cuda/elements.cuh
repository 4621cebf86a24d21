// Passes over arrays of elements, 16 bytes at a time. Include this after device.cuh for arithmetic that computes each
// element of an array from those at its place in others.
#pragma once

/// Elements that a thread loads or stores at once, 16 bytes at most.
template <typename T, u32 N>
struct alignas(N * sizeof(T)) Run {
    T x[N];
};

/// The type whose only value says how many elements a run has.
template <u32 N>
struct Size {
    static constexpr u32 VALUE = N;
};

/// Returns the run of `N` elements from a place on.
template <u32 N, typename T>
__device__ inline Run<T, N> load_run(const T* from, u64 at) {
    return *(const Run<T, N>*)(from + at);
}

/// Calls `f(Size<N>(), at)` for every run of N elements from the `head`-th on, and `f(Size<1>(), at)` for the elements
/// before and after them, with all threads of the grid; only the latter, for all `len` elements, unless `wide`. `f` may
/// load and store runs of arrays that are aligned to them from the `head`-th element on: `wide` says so.
template <u32 N, typename F>
__device__ inline void each_run_of(u64 len, u64 head, bool wide, F f) {
    u64 runs = wide && head < len ? (len - head) / N : 0;
    for (u64 i = first_place(); i < runs; i += stride()) f(Size<N>(), head + i * N);
    u64 rest = len - runs * N;
    for (u64 i = first_place(); i < rest; i += stride()) f(Size<1>(), i < head ? i : i + runs * N);
}

/// Does so with runs of 16 bytes, which arrays of one type have together or not at all. They are aligned to their
/// elements at least.
template <typename T, u32 COUNT, typename F>
__device__ inline void each_run(u64 len, const T* to, const T* const (&from)[COUNT], F f) {
    u64 head = (0 - (u64)to) % 16 / sizeof(T);
    bool alike = true;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) alike &= ((u64)from[i] - (u64)to) % 16 == 0;
    each_run_of<16 / sizeof(T)>(len, head, alike, f);
}

/// Computes `to ← f(from…)` for `len` elements, with all threads of the grid. No array overlaps `to`, but may be `to`.
template <typename T, u32 COUNT, typename F>
__device__ inline void compute(u64 len, T* to, const T* const (&from)[COUNT], F f) {
    each_run(len, to, from, [=](auto size, u64 at) {
        constexpr u32 N = decltype(size)::VALUE;
        Run<T, N> loaded[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) loaded[i] = load_run<N>(from[i], at);
        Run<T, N> out;
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            T x[COUNT];
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) x[i] = loaded[i].x[k];
            out.x[k] = f(x);
        }
        *(Run<T, N>*)(to + at) = out;
    });
}
