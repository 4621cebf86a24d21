// Random-k on the device: random_k.rs. Every place follows from the seed and its number alone, so that each has a
// thread of its own.
#include "device.cuh"
#include "elements.cuh"

/// Size of the seed in a message, in bytes.
constexpr u32 SEED = 8;

/// Places that a seed decides: k different ones of d, where k < 2³².
struct Places {
    u64 state;
    u64 len;
    u64 offset;
    u64 k;
    /// Width of a stratum, ⌊d/k⌋, and what is left over.
    u64 width;
    u64 excess;

    __device__ Places(u64 seed, u64 k, u64 len)
        : state(mix(seed)), len(len), offset(__umul64hi(mix(seed), len)), k(k), width(len / k), excess(len % k) {}

    /// Returns the place with a number.
    __device__ u64 at(u64 number) const {
        u64 before = number * excess / k;
        u64 after = (number + 1) * excess / k;
        u64 word = mix(state + (number + 1) * 0x9e3779b97f4a7c15);
        u64 start = number * width + before;
        u64 place = start + __umul64hi(word, width + (after - before)) + offset;
        return place < len ? place : place - len;
    }
};

/// Writes the seed to a message, and notes that no number is NaN or infinite so far. One thread.
extern "C" __global__ void random_k_begin(u64 seed, u32* odd, u8* to) {
    store_u64(to, seed);
    *odd = 0;
}

/// Notes whether a number is NaN or infinite, or refuses it.
extern "C" __global__ void random_k_look(const float* from, u64 len, u32 not_finite, u32* odd, Refusing refusing) {
    bool found = false;
    each_element(from, len, [&](float x, u64 i) {
        if (is_finite(x)) return;
        if (not_finite == REFUSE && !found) refuse(refusing, i, x);
        found = true;
    });
    if (found) atomicOr(odd, 1u);
}

/// Writes the numbers that are kept, behind the seed if the message has one.
extern "C" __global__ void random_k_keep(const float* from, u64 len, u64 k, float scale, u32 not_finite, u64 seed,
                                         const u32* odd, u8* values) {
    Places places(seed, k, len);
    bool finite = *odd == 0;
    for (u64 i = first_place(); i < k; i += stride()) {
        float x = from[places.at(i)];
        float plain = x * scale;
        float tame = not_finite == SATURATE ? saturated(saturated(x) * scale) : __uint_as_float(F32_NAN);
        store_f32(values + 4 * i, finite ? plain : tame);
    }
}

/// Sets all to 0.
extern "C" __global__ void random_k_clear(float* to, u64 len) {
    clear(len, to);
}

/// Adds the numbers of a message, times a weight.
extern "C" __global__ void random_k_add(const u8* from, u64 len, u64 k, float weight, float* to) {
    Places places(load_u64(from), k, len);
    for (u64 i = first_place(); i < k; i += stride()) {
        float* place = to + places.at(i);
        *place = canonical(*place + weight * load_f32(from + SEED + 4 * i));
    }
}

/// Stores numbers that all ranks' messages have been reduced to, at the places of a seed.
extern "C" __global__ void random_k_put(const u8* values, u64 len, u64 k, u64 seed, float* to) {
    Places places(seed, k, len);
    for (u64 i = first_place(); i < k; i += stride()) to[places.at(i)] = load_f32(values + 4 * i);
}

ENTRY(random_k_begin)
ENTRY(random_k_look)
ENTRY(random_k_keep)
ENTRY(random_k_clear)
ENTRY(random_k_add)
ENTRY(random_k_put)
