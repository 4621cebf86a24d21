// Votes on the device: the twin of ballot.rs, and of what tally.rs encodes. A warp has 32 elements at a time, which are
// four bytes of a bit plane.
#include "device.cuh"

/// Writes the bits of a warp, one of each lane, as far as they are of `len` elements.
__device__ inline void store_bits(u8* to, u64 base, u64 len, u32 bits) {
    u32 byte = threadIdx.x % 32;
    if (byte < 4 && base + 8 * byte < len) to[base / 8 + byte] = (u8)(bits >> 8 * byte);
}

/// Writes the signs, and refuses NaN, which has none. Either zero is positive.
extern "C" __global__ void ballot_encode(const float* from, u64 len, Refusing refusing, u8* to) {
    u32 lane = threadIdx.x % 32;
    for (u64 base = first_place() - lane; base < len; base += stride()) {
        float x = base + lane < len ? from[base + lane] : 0.0f;
        if (x != x) refuse(refusing, base + lane, x);
        store_bits(to, base, len, __ballot_sync(FULL, x < 0.0f));
    }
}

/// Stores what the signs stand for, 1 or −1.
extern "C" __global__ void ballot_decode(const u8* from, u64 len, float* to) {
    for (u64 i = first_place(); i < len; i += stride()) to[i] = from[i / 8] >> i % 8 & 1 ? -1.0f : 1.0f;
}

/// Counts one message of `width` bit planes of `len` bytes. Counts are bit planes, which the first message finds at
/// `begin`; `over` gets the bits of those that have overflown.
extern "C" __global__ void ballot_count(
    const u8* message, u64 len, u32 width, u32 planes, u64 begin, u32 is_first, u8* counts, u8* over) {
    for (u64 i = first_place(); i < len; i += stride()) {
        u8 flown = 0;
        if (is_first) {
            for (u32 p = 0; p < planes; p++) counts[p * len + i] = begin >> p & 1 ? 0xff : 0;
        } else {
            flown = over[i];
        }
        for (u32 plane = 0; plane < width; plane++) {
            u8 carry = message[plane * len + i];
            for (u32 p = lesser(plane, planes); p < planes; p++) {
                u8 count = counts[p * len + i];
                counts[p * len + i] = count ^ carry;
                carry &= count;
            }
            flown |= carry;
        }
        over[i] = flown;
    }
}

/// Writes the number of negative signs of each sum, in `width` bit planes.
extern "C" __global__ void ballot_tally(const float* from, u64 len, float half_of_all, u32 width, u8* to) {
    u32 lane = threadIdx.x % 32;
    u64 bytes = (len + 7) / 8;
    for (u64 base = first_place() - lane; base < len; base += stride()) {
        u32 number = base + lane < len ? (u32)(half_of_all - 0.5f * from[base + lane]) : 0;
        for (u32 plane = 0; plane < width; plane++) {
            store_bits(to + plane * bytes, base, len, __ballot_sync(FULL, number >> plane & 1));
        }
    }
}

ENTRY(ballot_encode)
ENTRY(ballot_decode)
ENTRY(ballot_count)
ENTRY(ballot_tally)
