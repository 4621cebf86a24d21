// Passes over arrays of elements, 16 bytes at a time. Include this after device.cuh for arithmetic that computes each
// element of an array from those at its place in others.
#pragma once

/// Elements that a thread loads or stores at once, 16 bytes at most.
template <typename T, u32 N>
struct alignas(N * sizeof(T)) Run {
    T x[N];
};

/// Loads and stores runs of `N` elements: at once if that is said, or else one by one, as they may not be aligned to a
/// run.
template <u32 N, bool AT_ONCE>
struct Load {
    static constexpr u32 SIZE = N;

    /// Returns the run from a place on.
    template <typename T>
    __device__ Run<T, N> operator()(const T* from, u64 at) const {
        if (AT_ONCE) return *(const Run<T, N>*)(from + at);
        Run<T, N> run;
#pragma unroll
        for (u32 k = 0; k < N; k++) run.x[k] = from[at + k];
        return run;
    }

    /// Stores a run from a place on.
    template <typename T>
    __device__ void store(T* to, u64 at, const Run<T, N>& run) const {
        if (AT_ONCE) {
            *(Run<T, N>*)(to + at) = run;
            return;
        }
#pragma unroll
        for (u32 k = 0; k < N; k++) to[at + k] = run.x[k];
    }
};

/// Calls `f(load, at)` for every run of `len` elements, with all threads of the grid. Runs have 16 bytes and are aligned
/// in `to`, but for elements before the first of these and behind the last; `load` is a `Load` for all arrays of `from`.
/// Arrays are aligned to their elements at least.
template <typename T, u32 COUNT, typename F>
__device__ inline void each_run(u64 len, const T* to, const T* const (&from)[COUNT], F f) {
    constexpr u32 N = 16 / sizeof(T);
    u64 head = (0 - (u64)to) % 16 / sizeof(T);
    u64 runs = head < len ? (len - head) / N : 0;
    bool alike = true;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) alike &= ((u64)from[i] - (u64)to) % 16 == 0;
    if (alike) {
        for (u64 i = first_place(); i < runs; i += stride()) f(Load<N, true>(), head + i * N);
    } else {
        for (u64 i = first_place(); i < runs; i += stride()) f(Load<N, false>(), head + i * N);
    }
    u64 rest = len - runs * N;
    for (u64 i = first_place(); i < rest; i += stride()) f(Load<1, true>(), i < head ? i : i + runs * N);
}

/// Computes `to ← f(from…)` for `len` elements, with all threads of the grid. No array overlaps `to`, but may be `to`.
template <typename T, u32 COUNT, typename F>
__device__ inline void compute(u64 len, T* to, const T* const (&from)[COUNT], F f) {
    each_run(len, to, from, [=](auto load, u64 at) {
        constexpr u32 N = decltype(load)::SIZE;
        Run<T, N> loaded[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) loaded[i] = load(from[i], at);
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

/// Calls `f(x)` for the elements x, one of each array, at every place of `len`, and stores what it has changed of the
/// first `CHANGED` of them, with all threads of the grid. No array overlaps another.
template <u32 CHANGED, typename T, u32 COUNT, typename F>
__device__ inline void change(u64 len, T* const (&arrays)[COUNT], F f) {
    const T* from[COUNT];
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) from[i] = arrays[i];
    each_run(len, arrays[0], from, [=](auto load, u64 at) {
        constexpr u32 N = decltype(load)::SIZE;
        Run<T, N> runs[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) runs[i] = load(arrays[i], at);
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            T x[COUNT];
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) x[i] = runs[i].x[k];
            f(x);
#pragma unroll
            for (u32 i = 0; i < CHANGED; i++) runs[i].x[k] = x[i];
        }
#pragma unroll
        for (u32 i = 0; i < CHANGED; i++) load.store(arrays[i], at, runs[i]);
    });
}

/// Calls `f(x, i)` for every element x and its number i, with all threads of the grid. A thread loads four elements
/// before it looks at the first, as otherwise memory would wait for it.
template <typename T, typename F>
__device__ inline void each_element(const T* from, u64 len, F f) {
    u64 step = stride();
    u64 i = first_place();
    for (; i + 3 * step < len; i += 4 * step) {
        T x[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) x[j] = from[i + j * step];
#pragma unroll
        for (u32 j = 0; j < 4; j++) f(x[j], i + j * step);
    }
    for (; i < len; i += step) f(from[i], i);
}

/// Sets `len` elements to 0, with all threads of the grid.
template <typename T>
__device__ inline void clear(u64 len, T* to) {
    for (u64 i = first_place(); i < len; i += stride()) to[i] = T();
}
