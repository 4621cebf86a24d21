// What makes a .cu file C++: the words of CUDA that kernels use, so that the host's compiler takes them, too.
//
// `build` includes this before every .cu file. A kernel's threads run one after the other on one thread of the host:
// a barrier or a shuffle is where a thread lets the others of its block run (block.cpp). `ENTRY(name)` makes a kernel
// known to the driver by its name, with the sizes of its parameters. Open this if a kernel needs a word that is missing.
#pragma once
#include "entry.h"
#include <cstring>
#include <math.h>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// One block runs at a time, so that one copy of its shared memory is enough. Blocks find what the one before has left.
#define __shared__ static

constexpr int warpSize = 32;

#define VECTOR(name, element, bytes)                                                                                   \
    struct alignas(2 * sizeof(element)) name##2 {                                                                      \
        element x, y;                                                                                                  \
    };                                                                                                                 \
    struct alignas(bytes) name##4 {                                                                                    \
        element x, y, z, w;                                                                                            \
    };                                                                                                                 \
    inline name##2 make_##name##2(element x, element y) { return {x, y}; }                                             \
    inline name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; }
VECTOR(char, signed char, 4)
VECTOR(uchar, unsigned char, 4)
VECTOR(short, short, 8)
VECTOR(ushort, unsigned short, 8)
VECTOR(int, int, 16)
VECTOR(uint, unsigned, 16)
VECTOR(float, float, 16)
VECTOR(longlong, long long, 16)
VECTOR(ulonglong, unsigned long long, 16)
VECTOR(double, double, 16)
#undef VECTOR

namespace fake {
template <class T> uint64_t word(T value) {
    static_assert(sizeof(T) <= 8, "values of at most 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T> T value(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
template <class To, class From> To cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of one size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
template <class T> T shuffle(unsigned mask, T mine, unsigned lane, const char *what) {
    const uint64_t *all = exchange(mask, word(mine), what);
    return lane < lanes() ? value<T>(all[lane]) : mine;
}
} // namespace fake

inline void __syncthreads() { fake::wait_for_block(); }
inline void __syncwarp(unsigned mask = 0xffffffff) { fake::exchange(mask, 0, "__syncwarp"); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T> T __shfl_sync(unsigned mask, T mine, int lane) {
    return fake::shuffle(mask, mine, lane & 31, "__shfl_sync");
}
template <class T> T __shfl_down_sync(unsigned mask, T mine, unsigned by) {
    return fake::shuffle(mask, mine, (threadIdx.x & 31) + by, "__shfl_down_sync");
}
template <class T> T __shfl_up_sync(unsigned mask, T mine, unsigned by) {
    unsigned lane = threadIdx.x & 31;
    return fake::shuffle(mask, mine, lane < by ? lane : lane - by, "__shfl_up_sync");
}
template <class T> T __shfl_xor_sync(unsigned mask, T mine, int with) {
    return fake::shuffle(mask, mine, (threadIdx.x & 31) ^ with, "__shfl_xor_sync");
}
inline unsigned __ballot_sync(unsigned mask, int mine) {
    const uint64_t *all = fake::exchange(mask, mine != 0, "__ballot_sync");
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < fake::lanes(); lane++) ballot |= unsigned(all[lane]) << lane;
    return ballot;
}
inline int __any_sync(unsigned mask, int mine) { return __ballot_sync(mask, mine) != 0; }
inline int __all_sync(unsigned mask, int mine) { return __ballot_sync(mask, !mine) == 0; }

// Atomics count for the host and for other processes, too, where memory is shared with them.
template <class T, class U> T atomicAdd(T *at, U by) {
    static_assert(std::is_integral_v<T>, "sums of floats would depend on the order of threads");
    return __atomic_fetch_add(at, T(by), __ATOMIC_RELAXED);
}
template <class T, class U> T atomicSub(T *at, U by) { return __atomic_fetch_sub(at, T(by), __ATOMIC_RELAXED); }
template <class T, class U> T atomicOr(T *at, U by) { return __atomic_fetch_or(at, T(by), __ATOMIC_RELAXED); }
template <class T, class U> T atomicAnd(T *at, U by) { return __atomic_fetch_and(at, T(by), __ATOMIC_RELAXED); }
template <class T, class U> T atomicXor(T *at, U by) { return __atomic_fetch_xor(at, T(by), __ATOMIC_RELAXED); }
template <class T, class U> T atomicExch(T *at, U by) { return __atomic_exchange_n(at, T(by), __ATOMIC_RELAXED); }
template <class T, class U, class V> T atomicCAS(T *at, U if_this, V then_this) {
    T seen = T(if_this);
    __atomic_compare_exchange_n(at, &seen, T(then_this), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return seen;
}
template <class T, class U> T atomicMin(T *at, U with) {
    T seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (T(with) < seen &&
           !__atomic_compare_exchange_n(at, &seen, T(with), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}
template <class T, class U> T atomicMax(T *at, U with) {
    T seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (seen < T(with) &&
           !__atomic_compare_exchange_n(at, &seen, T(with), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}

inline unsigned __float_as_uint(float x) { return fake::cast<unsigned>(x); }
inline int __float_as_int(float x) { return fake::cast<int>(x); }
inline float __uint_as_float(unsigned x) { return fake::cast<float>(x); }
inline float __int_as_float(int x) { return fake::cast<float>(x); }
inline long long __double_as_longlong(double x) { return fake::cast<long long>(x); }
inline double __longlong_as_double(long long x) { return fake::cast<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned((unsigned long long)x * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline float __double2float_rn(double x) { return float(x); }

// What device.cuh writes in PTX. As a GPU does, they return a NaN of their own for any NaN.
inline float widened_f16(unsigned short bits) {
    unsigned size = bits & 0x7fff;
    float denormal = float(size) * 0x1p-24f;
    unsigned normal = (size << 13) + (112u << 23);
    float number = size < 0x400 ? denormal : fake::cast<float>(size < 0x7c00 ? normal : 0x7f800000u);
    unsigned sign = unsigned(bits & 0x8000) << 16;
    return fake::cast<float>(size > 0x7c00 ? 0x7fffffffu : fake::cast<unsigned>(number) | sign);
}
inline unsigned short narrowed_f16(float x) {
    unsigned size = fake::cast<unsigned>(x) & 0x7fffffff;
    // Half of an f16's last place is added, but for a tie that would round to odd.
    unsigned normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    // Beside ½ the last place is 2⁻²⁴, as that of a denormal f16, and the addition rounds.
    unsigned denormal = fake::cast<unsigned>(fabsf(x) + 0.5f) & 0x7ff;
    unsigned number = size < 113u << 23 ? denormal : normal < 0x7c00 ? normal : 0x7c00;
    return size > 0x7f800000 ? 0x7fff : number | (fake::cast<unsigned>(x) >> 16 & 0x8000);
}
template <class T> T __ldg(const T *at) { return *at; }
template <class T> T __ldcs(const T *at) { return *at; }
template <class T> void __stcs(T *at, T value) { *at = value; }

template <class T, class U> constexpr std::common_type_t<T, U> min(T x, U y) { return y < x ? y : x; }
template <class T, class U> constexpr std::common_type_t<T, U> max(T x, U y) { return x < y ? y : x; }

namespace fake {
template <auto kernel> struct Kernel;
template <class... P, void (*kernel)(P...)> struct Kernel<kernel> {
    static_assert((true && ... && (sizeof(P) <= PLACE && std::is_trivially_copyable_v<P>)), "small plain parameters");
    static constexpr Parameter parameters[sizeof...(P) + 1] = {
        {sizeof(P), std::is_pointer_v<P> || std::is_class_v<P>}..., {0, false}};

    template <size_t... I> static void call(const unsigned char *at, std::index_sequence<I...>) {
        kernel(*reinterpret_cast<const P *>(at + I * PLACE)...);
    }
    static void thread(const unsigned char *at) { call(at, std::index_sequence_for<P...>()); }
    static constexpr size_t count = sizeof...(P);
};
} // namespace fake

#define ENTRY(name)                                                                                                    \
    static fake::Entry entry_of_##name(#name, fake::Kernel<&name>::thread, fake::Kernel<&name>::parameters,            \
                                       fake::Kernel<&name>::count);
