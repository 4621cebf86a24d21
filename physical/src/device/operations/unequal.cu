// Whether two runs have the same bits: the twin of unequal.rs. Open it for what holds copies on a GPU to each other.

#include "device.cuh"
#include "elements.cuh"

/// Stores 1 if a pair of elements differs.
template <typename T>
__device__ inline void unequal(const T* x, const T* y, u64 len, i32* found) {
    bool differs = false;
    each_element(x, len, [&](T x, u64 i) { differs |= x != y[i]; });
    if (differs) *found = 1;
}

extern "C" __global__ void unequal_bytes(const u8* x, const u8* y, u64 len, i32* found) {
    unequal(x, y, len, found);
}

extern "C" __global__ void unequal_halves(const u16* x, const u16* y, u64 len, i32* found) {
    unequal(x, y, len, found);
}

extern "C" __global__ void unequal_words(const u32* x, const u32* y, u64 len, i32* found) {
    unequal(x, y, len, found);
}

extern "C" __global__ void unequal_doubles(const u64* x, const u64* y, u64 len, i32* found) {
    unequal(x, y, len, found);
}

ENTRY(unequal_bytes)
ENTRY(unequal_halves)
ENTRY(unequal_words)
ENTRY(unequal_doubles)
