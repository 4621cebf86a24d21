// What all kernels share. Include this first in a .cu file; README.md says how one is added.
//
// Everything here has the bits of its host twin, which is named where it is not obvious. NVRTC compiles it for the
// device, without fused operations and with the IEEE's division and square root, and a C++ compiler for the driver of
// the tests, which then defines what CUDA has built in, ENTRY, and the conversions of f16.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

#ifdef __CUDACC__
/// Registers a kernel with the driver of the tests. Every kernel is named so at the end of its file.
#define ENTRY(name)

/// Returns the float that the bits of an f16 are; of NaN, any NaN.
__device__ inline float widened_f16(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

/// Returns the bits of the nearest f16, ties to even; of NaN, those of any NaN.
__device__ inline u16 narrowed_f16(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

/// The mask of a shuffle in which all threads of a warp take part.
constexpr u32 FULL = 0xffffffff;

// ------------------------------------------------------------------------------------------------------------ places

/// Returns the number of this thread in the grid: the first element that it works on.
__device__ inline u64 first_place() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

/// Returns the number of threads of the grid: the distance from an element of a thread to its next one.
__device__ inline u64 stride() {
    return (u64)gridDim.x * blockDim.x;
}

// ------------------------------------------------------------------------ rules for NaN and zeros: kernels/float.rs

constexpr u32 F32_INFINITY = 0x7f800000;
constexpr u32 F32_NAN = 0x7fc00000;
constexpr u32 F32_LARGEST = 0x7f7fffff;
constexpr u64 F64_NAN = 0x7ff8000000000000;

/// Returns the bits of a float without its sign, which are in the order of magnitudes.
__device__ inline u32 magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffff;
}

/// Returns true unless the float is NaN or infinite.
__device__ inline bool is_finite(float x) {
    return magnitude(x) < F32_INFINITY;
}

/// Returns the number itself, and the one NaN for any NaN. Whatever a kernel stores has gone through this.
__device__ inline float canonical(float x) {
    return x != x ? __uint_as_float(F32_NAN) : x;
}

__device__ inline double canonical(double x) {
    return x != x ? __longlong_as_double((i64)F64_NAN) : x;
}

/// Returns IEEE 754-2019's minimum: NaN if one of both is, and −0 is less than +0.
__device__ inline float minimum(float x, float y) {
    float zero = __uint_as_float(__float_as_uint(x) | __float_as_uint(y));
    float least = x == y ? zero : x < y ? x : y;
    return x != x || y != y ? __uint_as_float(F32_NAN) : least;
}

__device__ inline double minimum(double x, double y) {
    double zero = __longlong_as_double(__double_as_longlong(x) | __double_as_longlong(y));
    double least = x == y ? zero : x < y ? x : y;
    return x != x || y != y ? __longlong_as_double((i64)F64_NAN) : least;
}

/// Returns IEEE 754-2019's maximum: NaN if one of both is, and +0 is greater than −0.
__device__ inline float maximum(float x, float y) {
    float zero = __uint_as_float(__float_as_uint(x) & __float_as_uint(y));
    float most = x == y ? zero : x > y ? x : y;
    return x != x || y != y ? __uint_as_float(F32_NAN) : most;
}

__device__ inline double maximum(double x, double y) {
    double zero = __longlong_as_double(__double_as_longlong(x) & __double_as_longlong(y));
    double most = x == y ? zero : x > y ? x : y;
    return x != x || y != y ? __longlong_as_double((i64)F64_NAN) : most;
}

/// Returns the smaller one, and `y` unless `x` compares as smaller: what host kernels write `if x < y { x } else { y }`.
template <typename T>
__device__ inline T lesser(T x, T y) {
    return x < y ? x : y;
}

/// Returns the larger one, and `y` unless `x` compares as larger.
template <typename T>
__device__ inline T greater(T x, T y) {
    return x > y ? x : y;
}

// ------------------------------------------------------------------------------- numbers at any alignment in messages

__device__ inline u16 load_u16(const u8* from) {
    return (u16)(from[0] | from[1] << 8);
}

__device__ inline u32 load_u32(const u8* from) {
    return (u32)from[0] | (u32)from[1] << 8 | (u32)from[2] << 16 | (u32)from[3] << 24;
}

__device__ inline u64 load_u64(const u8* from) {
    return (u64)load_u32(from) | (u64)load_u32(from + 4) << 32;
}

__device__ inline float load_f32(const u8* from) {
    return __uint_as_float(load_u32(from));
}

__device__ inline void store_u16(u8* to, u16 x) {
    to[0] = (u8)x;
    to[1] = (u8)(x >> 8);
}

__device__ inline void store_u32(u8* to, u32 x) {
    for (u32 i = 0; i < 4; i++) to[i] = (u8)(x >> 8 * i);
}

__device__ inline void store_u64(u8* to, u64 x) {
    for (u32 i = 0; i < 8; i++) to[i] = (u8)(x >> 8 * i);
}

__device__ inline void store_f32(u8* to, float x) {
    store_u32(to, __float_as_uint(x));
}

// ------------------------------------------------------------------------------ 16-bit floats: kernels/portable.rs

/// IEEE half precision.
struct f16 {
    u16 bits;
};

/// Bfloat16.
struct bf16 {
    u16 bits;
};

constexpr u32 F16_NAN = 0x7e00;
constexpr u32 BF16_NAN = 0x7fc0;

/// Returns the bits of the nearest bf16, ties to even, of a float that is not NaN, and of the one NaN.
__device__ inline u32 bf16_bits(float x) {
    u32 bits = __float_as_uint(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/// Rounds to the nearest f16, ties to even; NaNs stay NaN, with the upper bits of their payload.
__device__ inline f16 f16_of(float x) {
    u32 bits = __float_as_uint(x);
    u32 nan = F16_NAN | (bits >> 16 & 0x8000) | (bits >> 13 & 0x3ff);
    return {(u16)(x != x ? nan : narrowed_f16(x))};
}

/// Rounds to the nearest bf16, ties to even; NaNs stay NaN, with the upper bits of their payload.
__device__ inline bf16 bf16_of(float x) {
    return {(u16)(x != x ? __float_as_uint(x) >> 16 | 0x40 : bf16_bits(x))};
}

/// Rounds to the nearest f16, ties to even, and any NaN to the one NaN: `f16_of(canonical(x))`.
__device__ inline f16 canonical_f16(float x) {
    return {(u16)(x != x ? F16_NAN : narrowed_f16(x))};
}

/// Rounds to the nearest bf16, ties to even, and any NaN to the one NaN: `bf16_of(canonical(x))`.
__device__ inline bf16 canonical_bf16(float x) {
    return {(u16)bf16_bits(canonical(x))};
}

/// Converts to f32, exactly; NaNs become quiet.
__device__ inline float f32_of(f16 x) {
    float number = widened_f16(x.bits);
    u32 nan = F32_NAN | (u32)(x.bits & 0x8000) << 16 | (u32)(x.bits & 0x3ff) << 13;
    return number != number ? __uint_as_float(nan) : number;
}

/// Converts to f32, exactly.
__device__ inline float f32_of(bf16 x) {
    return __uint_as_float((u32)x.bits << 16);
}

// ---------------------------------------------------------------------------------- sums of 64 lanes: kernels/mod.rs

/// Accumulators of a reduction: lane i takes elements i, i + 64, …
constexpr u32 WIDE = 64;

/// Combines the values of 64 lanes into one, by halves: lane i with lane i + 32, then with i + 16, and so on.
///
/// All threads of the block call it, a multiple of 64; each 64 of them are the lanes of a result of their own, which
/// all of them get. `room` is shared memory for one value of each thread, free again on return.
template <typename T, typename Combine>
__device__ inline T fold(T mine, T* room, Combine combine) {
    u32 lane = threadIdx.x % WIDE;
    T* lanes = room + (threadIdx.x - lane);
    lanes[lane] = mine;
    __syncthreads();
    if (lane < WIDE / 2) {
        mine = combine(mine, lanes[lane + WIDE / 2]);
        for (u32 half = WIDE / 4; half > 0; half /= 2) mine = combine(mine, __shfl_down_sync(FULL, mine, half));
        if (lane == 0) lanes[0] = mine;
    }
    __syncthreads();
    T all = lanes[0];
    __syncthreads();
    return all;
}

/// Most values that wait in shared memory to be merged.
constexpr u32 WAITING = 4096;

/// Combines values in 64 lanes, of which lane i takes values i, i + 64, …, and then lane i with lane i + 32. All threads
/// of the block call it, a multiple of 64; those of the first warp get what is left to be combined by halves. `room` is
/// shared memory for `WAITING` values, free again on return.
template <typename T, typename Combine>
__device__ inline T merge_lanes(const T* from, u64 count, T* room, T none, Combine combine) {
    T mine = none;
    for (u64 first = 0; first < count; first += WAITING) {
        u32 some = (u32)lesser(count - first, (u64)WAITING);
        // Eight are loaded before the first is stored, as otherwise memory would wait for it. Beyond the end it is the last
        // one, as a load under a condition waits for the one before.
        for (u32 i = threadIdx.x; i < some; i += 8 * blockDim.x) {
            T x[8];
#pragma unroll
            for (u32 j = 0; j < 8; j++) x[j] = from[first + lesser(i + j * blockDim.x, some - 1)];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                if (i + j * blockDim.x < some) room[i + j * blockDim.x] = x[j];
            }
        }
        __syncthreads();
        if (threadIdx.x < WIDE) {
            u32 i = threadIdx.x;
            for (; i + 7 * WIDE < some; i += 8 * WIDE) {
                T x[8];
#pragma unroll
                for (u32 j = 0; j < 8; j++) x[j] = room[i + j * WIDE];
#pragma unroll
                for (u32 j = 0; j < 8; j++) mine = combine(mine, x[j]);
            }
            for (; i < some; i += WIDE) mine = combine(mine, room[i]);
        }
        __syncthreads();
    }
    if (threadIdx.x < WIDE) room[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x < WIDE / 2) mine = combine(mine, room[threadIdx.x + WIDE / 2]);
    __syncthreads();
    return mine;
}

// ------------------------------------------------------------------------------------- random words: kernels/draw.rs

/// Mixes a word by SplitMix64.
__device__ inline u64 mix(u64 word) {
    word += 0x9e3779b97f4a7c15;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

/// Keys from which the draws of every block follow, derived from a seed by `mix(seed)`.
struct Keys {
    u64 seed;

    __device__ inline u64 of(u64 block) const {
        return mix(seed ^ block);
    }
};

__device__ inline Keys keys_of(u64 seed) {
    return {mix(seed)};
}

// -------------------------------------------------------------- NaN and infinity in codecs: NotFinite and not_finite.rs

constexpr u32 REFUSE = 0;
constexpr u32 PROPAGATE = 1;
constexpr u32 SATURATE = 2;

/// Returns 0 for NaN, and the largest number for infinity.
__device__ inline float saturated(float x) {
    u32 sign = __float_as_uint(x) & 0x80000000;
    float finite = is_finite(x) ? x : __uint_as_float(sign | F32_LARGEST);
    return x != x ? 0.0f : finite;
}

// ----------------------------------------------------------------------------------------------------------- refusals

/// What the first launch of a queue that refused something has refused, in the device's memory; zeros before.
struct Refusal {
    /// The launch; 0 while there is none.
    u64 launch;
    /// The lowest element, and the upper half of the bits of its value: see `ranked`.
    u64 upper;
    /// The number of elements of the memory before those that the launch was given.
    u64 before;
    /// The lowest element, and the lower half of the bits of its value; these are 0 for damage.
    u64 lower;
};

/// Where a launch refuses.
struct Refusing {
    Refusal* record;
    u64 launch;
    u64 before;
};

/// Returns the largest of all words for the lowest element: 48 bits that fall while the element's number rises, above a
/// half of its value.
__device__ inline u64 ranked(u64 index, u32 half) {
    return ~index << 16 | half;
}

/// Refuses an element for its value, which is not 0. The first launch that refuses is kept, and of its elements the
/// lowest. Launches of a queue run one after another, and all threads of one refuse an element for the same value.
///
/// Nobody waits for anybody: threads of a warp that waited for a lock of one of them could keep it from running. So each
/// half of a value is kept by a maximum of its own, and as both go by the element, both are of the same one in the end.
__device__ inline void refuse(Refusing refusing, u64 index, float value) {
    volatile Refusal* record = refusing.record;
    u64 launch = record->launch;
    // If all is NaN, most threads see here that a lower element is kept, or will be as soon as its thread goes on.
    if (launch != 0 && (launch != refusing.launch || record->upper >= ranked(index, 0))) return;
    u32 bits = __float_as_uint(value);
    atomicMax(&refusing.record->upper, ranked(index, bits >> 16));
    atomicMax(&refusing.record->lower, ranked(index, bits & 0xffff));
    // All threads of the launch write the same.
    record->before = refusing.before;
    record->launch = refusing.launch;
}

/// Refuses a message as none of its codec, at an element.
__device__ inline void damage(Refusing refusing, u64 index) {
    refuse(refusing, index, 0.0f);
}
