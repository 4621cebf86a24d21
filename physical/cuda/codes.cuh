// Codes of some bits as a warp writes and reads them, in rows of 32: what blocks.cuh has between numbers and messages.
// Open this for a codec whose codes have another size.
#pragma once

/// Threads of a warp.
constexpr u32 WARP = 32;

__device__ inline u32 lane() {
    return threadIdx.x % WARP;
}

/// Writes a code of whole bytes at a place among others.
template <u32 BITS, bool IS_ALIGNED>
__device__ inline void store_code(u8* codes, u32 at, u32 code) {
    if (BITS == 8) codes[at] = (u8)code;
    else if (BITS == 16 && IS_ALIGNED) ((u16*)codes)[at] = (u16)code;
    else if (BITS == 16) store_u16(codes + 2 * at, (u16)code);
    else if (IS_ALIGNED) ((u32*)codes)[at] = code;
    else store_u32(codes + 4 * at, code);
}

/// Writes 16 rows of one bit each: two lanes have the 32 bits of a row, in order.
__device__ inline void store_bits(u8* codes, u32 first, const u32 (&code)[16]) {
    u32 mine = 0;
#pragma unroll
    for (u32 row = 0; row < 16; row++) {
        u32 bits = __ballot_sync(FULL, code[row] != 0);
        mine = lane() / 2 == row ? bits : mine;
    }
    mine >>= lane() % 2 * 16;
    u8* to = codes + first / 8 + 2 * lane();
    to[0] = (u8)mine;
    to[1] = (u8)(mine >> 8);
}

/// Writes a row of one bit each.
__device__ inline void store_bits(u8* codes, u32 first, u32 count, u32 code) {
    u32 bits = __ballot_sync(FULL, lane() < count && code != 0);
    if (lane() < 4 && 8 * lane() < count) codes[first / 8 + lane()] = (u8)(bits >> 8 * lane());
}

/// Writes two rows of four bits each: a lane gives its neighbour the code of the row that it does not write itself.
__device__ inline void store_pairs(u8* codes, u32 at, u32 lower, u32 upper) {
    bool is_odd = lane() % 2 == 1;
    u32 own = is_odd ? upper : lower;
    u32 other = __shfl_xor_sync(FULL, is_odd ? lower : upper, 1);
    codes[at / 2 + (is_odd ? WARP / 2 : 0)] = (u8)(is_odd ? other | own << 4 : own | other << 4);
}

/// Writes a row of four bits each.
__device__ inline void store_row(u8* codes, u32 at, u32 count, u32 code) {
    u32 own = lane() < count ? code : 0;
    u32 upper = __shfl_down_sync(FULL, own, 1);
    if (lane() < count && at % 2 == 0) codes[at / 2] = (u8)(own | upper << 4);
}

/// Writes the codes of rows of 32 at places that follow each other, with all lanes of a warp: `at` is the lane's place
/// in the first row, and rows have `count` codes.
template <u32 BITS, bool IS_ALIGNED, u32 ROWS>
__device__ inline void store_codes(u8* codes, u32 at, u32 count, const u32 (&code)[ROWS]) {
    if constexpr (BITS == 1 && ROWS == 16) {
        store_bits(codes, at - lane(), code);
        return;
    }
#pragma unroll
    for (u32 row = 0; row < ROWS; row++, at += WARP) {
        if constexpr (BITS == 1) {
            store_bits(codes, at - lane(), count, code[row]);
        } else if constexpr (BITS == 4 && ROWS % 2 == 0) {
            if (row % 2 == 0) store_pairs(codes, at, code[row], code[row + 1]);
        } else if constexpr (BITS == 4) {
            store_row(codes, at, count, code[row]);
        } else {
            if (lane() < count) store_code<BITS, IS_ALIGNED>(codes, at, code[row]);
        }
    }
}

/// Reads the code at a place.
template <u32 BITS, bool IS_ALIGNED = true>
__device__ inline u32 load_code(const u8* codes, u32 at) {
    if (BITS < 8) return (codes[at * BITS / 8] >> at * BITS % 8) & ((1 << BITS) - 1);
    if (BITS == 8) return codes[at];
    if (BITS == 16) return IS_ALIGNED ? ((const u16*)codes)[at] : load_u16(codes + 2 * at);
    return IS_ALIGNED ? ((const u32*)codes)[at] : load_u32(codes + 4 * at);
}
