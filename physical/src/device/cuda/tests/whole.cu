// Kernels of the codec `Whole` in refusals.rs, beside this: it keeps every number, and refuses NaN.
#include "device.cuh"

extern "C" __global__ void whole_encode(const float* from, u64 len, u8* to, Refusing refusing) {
    for (u64 i = first_place(); i < len; i += stride()) {
        if (from[i] != from[i]) refuse(refusing, i, from[i]);
        store_f32(to + 4 * i, from[i]);
    }
}

/// Takes a message whose first byte is 0xff for a damaged one.
extern "C" __global__ void whole_decode(const u8* from, u64 len, float weight, float* to, Refusing refusing) {
    for (u64 i = first_place(); i < len; i += stride()) {
        if (from[0] == 0xff) damage(refusing, i);
        to[i] = canonical(to[i] + weight * load_f32(from + 4 * i));
    }
}

/// Leaves what its scratch memory holds to nobody: writes it, and reads it again.
extern "C" __global__ void whole_scratch(u64* scratch, u64 len, u64* to) {
    for (u64 i = first_place(); i < len; i += stride()) {
        scratch[i] = i;
        to[i] = scratch[i] + 1;
    }
}

ENTRY(whole_encode)
ENTRY(whole_decode)
ENTRY(whole_scratch)
