// Runs that are encoded in blocks, each a header and a code for every number: the twin of
// logical/src/codec/shared/blocks/mod.rs.
// Include this after device.cuh for a codec of that kind, which says what its header and its codes are.
//
// A warp works on one tile at a time: a block, or 2048 numbers of a larger one. Lane i has numbers i, i + 32, …, so that
// every access is of 32 neighbours, at any alignment. A run is read once if its blocks are no larger than a tile. The
// numbers of a tile then wait for what becomes the header: in registers if they are few, as many tiles have to be under
// way at a time then, and in shared memory else. Larger blocks take three launches: each tile is measured, these measures
// are merged to a header for each block, and the numbers are read again. Codes that need no header are written at once.
//
// A codec is a class that is made of what a header holds, and has these:
//
//     HEADER, BITS                     size of a header in bytes, of a code in bits
//     BEYOND, LARGEST                  magnitudes: the least that does not fit, and the largest that others saturate to
//     read(from), store(to)            what a header holds, and the header of this codec
//     code(x), number(code)            a number's code, and what that decodes to
//
// One whose header has any bytes has these besides, where a measure, of 8 bytes at most, is what a header is made of:
//
//     IS_FREE                          true if codes do not depend on the header: code(x) is static then
//     Lane {add(at, x), finish(tile)}  what a lane gathers of the numbers, and the tile's measure, the same in all lanes
//     none(), merge(x, y), fold(x)     the measure of no numbers, of two, and of all lanes
//     value(measure, len)              what the header of a block of so many numbers holds
#pragma once

#include "codes.cuh"

/// Warps of a block of threads.
constexpr u32 WARPS = 4;
/// Most numbers of a tile, and of one that stays in registers.
constexpr u32 TILE = 2048;
constexpr u32 SMALL_TILE = 4 * WARP;

/// Combines the values of all lanes, by halves. All lanes get the same, as sums do not depend on the order of two.
template <typename T, typename Combine>
__device__ inline T fold_warp(T mine, Combine combine) {
    for (u32 half = WARP / 2; half > 0; half /= 2) mine = combine(mine, __shfl_xor_sync(FULL, mine, half));
    return mine;
}

// --------------------------------------------------------------------------------------------------- where things are

/// A run of `len` numbers in blocks of `size`.
struct Cut {
    u64 len;
    u64 size;
    /// Number of tiles of all blocks, each with as many as a whole one has.
    u64 tiles;
};

/// Numbers on which a warp works.
struct Tile {
    /// The numbers themselves, while they are encoded.
    const f32* from;
    /// The first one's place in the run, and in its block.
    u64 start;
    u64 offset;
    u32 len;
    /// Number of the block, and its length.
    u64 block;
    u64 block_len;
    u32 policy;
    /// Whether one of the numbers does not fit.
    bool is_unfit;
};

__device__ inline Tile tile_of(Cut cut, u64 number) {
    u64 each = (cut.size + TILE - 1) / TILE;
    Tile tile = {};
    tile.block = each == 1 ? number : number / each;
    tile.offset = each == 1 ? 0 : (number - tile.block * each) * TILE;
    u64 first = tile.block * cut.size;
    tile.start = first + tile.offset;
    tile.block_len = lesser(cut.size, cut.len - first);
    // The last block may have fewer tiles than others.
    u64 rest = tile.offset < tile.block_len ? tile.block_len - tile.offset : 0;
    tile.len = (u32)lesser(rest, (u64)TILE);
    return tile;
}

/// Calls `f(tile, number)` for all tiles, with all warps of the grid.
template <typename F>
__device__ inline void each_tile(Cut cut, F f) {
    for (u64 number = first_place() / WARP; number < cut.tiles; number += stride() / WARP) f(tile_of(cut, number), number);
}

/// Returns the size of the message of so many numbers of one block, in bytes.
template <typename Codec>
__device__ inline u64 message_len(u64 len) {
    return Codec::HEADER + len / 8 * Codec::BITS + (len % 8 * Codec::BITS + 7) / 8;
}

/// Returns where the message of a tile's block is.
template <typename Codec, typename Bytes>
__device__ inline Bytes* message_of(Cut cut, Tile tile, Bytes* messages) {
    return messages + tile.block * message_len<Codec>(cut.size);
}

/// Returns where the codes of a tile are.
template <typename Codec, typename Bytes>
__device__ inline Bytes* codes_of(Cut cut, Tile tile, Bytes* messages) {
    return message_of<Codec>(cut, tile, messages) + Codec::HEADER + tile.offset / 8 * Codec::BITS;
}

// ------------------------------------------------------------------------------------------------------ NaN, infinity

/// Returns the number that is encoded: with SATURATE 0 for NaN, and what exceeds the largest number cut to that.
template <typename Codec>
__device__ inline f32 treated(f32 x, u32 policy) {
    // By numbers, as of branches the compiler would make a kernel for each policy.
    u32 limit = policy == SATURATE ? Codec::LARGEST : FULL;
    u32 nan = policy == SATURATE ? 0 : FULL;
    u32 bits = __float_as_uint(x);
    return __uint_as_float(x != x ? bits & nan : (bits & 0x80000000) | lesser(magnitude(x), limit));
}

// -------------------------------------------------------------------------------------------------------------- codes

/// Returns true if codes of whole bytes are at a multiple of their size.
template <typename Codec>
__device__ inline bool is_aligned(const u8* codes) {
    return (u64)codes % (Codec::BITS < 8 ? 1 : Codec::BITS / 8) == 0;
}

/// A number of rows of 32, as a type.
template <u32 N>
struct Rows {
    static constexpr u32 VALUE = N;
};

/// Calls `f(Rows<N>(), at, count)` for batches of rows of a tile, in all lanes together: `at` is the lane's place in the
/// first row, and rows have `count` numbers. Many rows together hide how long memory takes.
template <typename F>
__device__ inline void each_batch(u32 len, F f) {
    u32 first = 0;
#pragma unroll 1
    for (; len - first >= 16 * WARP; first += 16 * WARP) f(Rows<16>(), first + lane(), WARP);
#pragma unroll 1
    for (; len - first >= 4 * WARP; first += 4 * WARP) f(Rows<4>(), first + lane(), WARP);
#pragma unroll 1
    for (; first < len; first += WARP) f(Rows<1>(), first + lane(), lesser(len - first, WARP));
}

// ------------------------------------------------------------------------------------------------------------ encoding

/// Treats rows of numbers as the policy says, of which `at` is the lane's place in the first one. Returns the first
/// place of the lane whose number does not fit, or `TILE`.
template <typename Codec, u32 ROWS>
__device__ inline u32 treat(const Tile& tile, u32 at, f32 (&x)[ROWS]) {
    u32 unfit = TILE;
    u32 most = 0;
#pragma unroll
    for (u32 row = 0; row < ROWS; row++) most = greater(magnitude(x[row]), most);
    if (most >= Codec::BEYOND) {
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            if (magnitude(x[row]) < Codec::BEYOND) continue;
            unfit = lesser(at + row * WARP, unfit);
            x[row] = treated<Codec>(x[row], tile.policy);
        }
    }
    return unfit;
}

/// Calls `f(rows, at, x, count)` for a tile's numbers as they are encoded, in rows as `each_batch` has them, with 0 for
/// those that fill up the last one. Returns the first place of the lane whose number does not fit, or `TILE`.
template <typename Codec, typename F>
__device__ inline u32 each_number(const Tile& tile, F f) {
    u32 unfit = TILE;
    each_batch(tile.len, [&](auto rows, u32 at, u32 count) {
        constexpr u32 ROWS = decltype(rows)::VALUE;
        f32 x[ROWS];
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) x[row] = lane() < count ? tile.from[at + row * WARP] : 0.0f;
        unfit = lesser(unfit, treat<Codec>(tile, at, x));
        f(rows, at, x, count);
    });
    return unfit;
}

/// Refuses a lane's first number that does not fit, if such are to be refused.
__device__ inline void refuse_unfit(const Tile& tile, u32 unfit, Refusing refusing) {
    if (unfit < TILE && tile.policy == REFUSE) refuse(refusing, tile.start + unfit, tile.from[unfit]);
}

/// Returns what a tile's header is made of, of what a lane has gathered and of its first number that does not fit.
template <typename Lane>
__device__ inline auto finish(Tile& tile, const Lane& mine, u32 unfit, Refusing refusing) {
    refuse_unfit(tile, unfit, refusing);
    tile.is_unfit = __ballot_sync(FULL, unfit < TILE) != 0;
    return mine.finish(tile);
}

/// Returns what a tile's header is made of, and passes on its numbers to `keep(rows, at, x, count)`.
template <typename Codec, typename F>
__device__ inline auto measure_tile(Tile& tile, Refusing refusing, F keep) {
    typename Codec::Lane mine;
    u32 unfit = each_number<Codec>(tile, [&](auto rows, u32 at, auto& x, u32 count) {
        constexpr u32 ROWS = decltype(rows)::VALUE;
        keep(rows, at, x, count);
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            if (lane() < count) mine.add(at + row * WARP, x[row]);
        }
    });
    return finish(tile, mine, unfit, refusing);
}

/// Writes the codes of rows of numbers.
template <typename Codec, bool IS_ALIGNED, u32 ROWS, typename Code>
__device__ inline void store_numbers(u8* codes, u32 at, u32 count, const f32 (&x)[ROWS], Code code) {
    u32 all[ROWS];
#pragma unroll
    for (u32 row = 0; row < ROWS; row++) all[row] = code(x[row]);
    store_codes<Codec::BITS, IS_ALIGNED>(codes, at, count, all);
}

/// Writes a tile's codes that need no header.
template <typename Codec, bool IS_ALIGNED>
struct Free {
    u8* codes;

    template <typename R, u32 ROWS>
    __device__ void operator()(R, u32 at, const f32 (&x)[ROWS], u32 count) const {
        store_numbers<Codec, IS_ALIGNED>(codes, at, count, x, [](f32 x) { return Codec::code(x); });
    }
};

/// Calls `f(tile, number)` for all tiles of a run that is encoded.
template <typename F>
__device__ inline void each_encoded(const f32* from, Cut cut, u32 policy, F f) {
    each_tile(cut, [=](Tile tile, u64 number) {
        tile.from = from + tile.start;
        tile.policy = policy;
        f(tile, number);
    });
}

/// Encodes a run that has no headers.
template <typename Codec, bool IS_ALIGNED>
__device__ inline void encode_plain(const f32* from, u8* to, Cut cut, u32 policy, Refusing refusing) {
    each_encoded(from, cut, policy, [=](Tile tile, u64) {
        u32 unfit = each_number<Codec>(tile, Free<Codec, IS_ALIGNED>{codes_of<Codec>(cut, tile, to)});
        refuse_unfit(tile, unfit, refusing);
    });
}

/// Encodes a run whose blocks are no larger than a tile.
template <typename Codec>
__device__ inline void encode_blocks(const f32* from, u8* to, Cut cut, u32 policy, Refusing refusing) {
    // A lane reads only what it has written itself.
    __shared__ f32 rooms[Codec::IS_FREE ? 1 : WARPS][TILE];
    f32* room = rooms[Codec::IS_FREE ? 0 : threadIdx.x / WARP];
    each_encoded(from, cut, policy, [=](Tile tile, u64) {
        u8* codes = codes_of<Codec>(cut, tile, to);
        auto measure = measure_tile<Codec>(tile, refusing, [=](auto rows, u32 at, auto& x, u32 count) {
            if constexpr (Codec::IS_FREE) {
                Free<Codec, true>{codes}(rows, at, x, count);
            } else {
#pragma unroll
                for (u32 row = 0; row < decltype(rows)::VALUE; row++) room[at + row * WARP] = x[row];
            }
        });
        Codec codec(Codec::value(measure, tile.block_len));
        if (lane() == 0) codec.store(message_of<Codec>(cut, tile, to));
        if constexpr (!Codec::IS_FREE) {
            each_batch(tile.len, [=](auto rows, u32 at, u32 count) {
                constexpr u32 ROWS = decltype(rows)::VALUE;
                f32 x[ROWS];
#pragma unroll
                for (u32 row = 0; row < ROWS; row++) x[row] = room[at + row * WARP];
                store_numbers<Codec, true>(codes, at, count, x, [=](f32 x) { return codec.code(x); });
            });
        }
    });
}

/// Encodes a run whose blocks have at most as many numbers as a small tile.
template <typename Codec>
__device__ inline void encode_small(const f32* from, u8* to, Cut cut, u32 policy, Refusing refusing) {
    constexpr u32 ROWS = SMALL_TILE / WARP;
    each_encoded(from, cut, policy, [=](Tile tile, u64) {
        f32 x[ROWS];
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            u32 at = lane() + row * WARP;
            x[row] = at < tile.len ? tile.from[at] : 0.0f;
        }
        u32 unfit = treat<Codec>(tile, lane(), x);
        typename Codec::Lane mine;
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            u32 at = lane() + row * WARP;
            if (at < tile.len) mine.add(at, x[row]);
        }
        Codec codec(Codec::value(finish(tile, mine, unfit, refusing), tile.block_len));
        if (lane() == 0) codec.store(message_of<Codec>(cut, tile, to));
        u8* codes = codes_of<Codec>(cut, tile, to);
        auto code = [=](f32 x) { return codec.code(x); };
        if (tile.len == SMALL_TILE) {
            store_numbers<Codec, true>(codes, lane(), WARP, x, code);
            return;
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            const f32 one[1] = {x[row]};
            u32 rest = tile.len > row * WARP ? tile.len - row * WARP : 0;
            store_numbers<Codec, true>(codes, lane() + row * WARP, lesser(rest, WARP), one, code);
        }
    });
}

/// Measures every tile of a run, and writes its codes if they need no header.
template <typename Codec, typename Measure>
__device__ inline void measure_blocks(
    const f32* from, u8* to, Measure* measures, Cut cut, u32 policy, Refusing refusing) {
    each_encoded(from, cut, policy, [=](Tile tile, u64 number) {
        u8* codes = codes_of<Codec>(cut, tile, to);
        auto measure = measure_tile<Codec>(tile, refusing, [=](auto rows, u32 at, auto& x, u32 count) {
            if constexpr (Codec::IS_FREE) Free<Codec, true>{codes}(rows, at, x, count);
        });
        if (lane() == 0) measures[number] = measure;
    });
}

/// Writes every block's header, each with a block of threads: its tiles' measures are merged in 64 lanes, of which lane i
/// takes tiles i, i + 64, …, and these by halves.
template <typename Codec, typename Measure>
__device__ inline void head_blocks(const Measure* measures, u8* to, Cut cut) {
    __shared__ Measure room[WAITING];
    u64 each = (cut.size + TILE - 1) / TILE;
    for (u64 block = blockIdx.x; block * each < cut.tiles; block += gridDim.x) {
        Tile tile = tile_of(cut, block * each);
        u64 count = (tile.block_len + TILE - 1) / TILE;
        auto merge = [](Measure x, Measure y) { return Codec::merge(x, y); };
        Measure all = merge_lanes(measures + block * each, count, room, Codec::none(), merge);
        if (threadIdx.x >= WARP) continue;
        all = Codec::fold(all);
        if (lane() == 0) Codec(Codec::value(all, tile.block_len)).store(message_of<Codec>(cut, tile, to));
    }
}

/// Writes the codes of a run whose headers are written.
template <typename Codec>
__device__ inline void code_blocks(const f32* from, u8* to, Cut cut, u32 policy) {
    each_encoded(from, cut, policy, [=](Tile tile, u64) {
        Codec codec(Codec::read(message_of<Codec>(cut, tile, to)));
        u8* codes = codes_of<Codec>(cut, tile, to);
        each_number<Codec>(tile, [=](auto, u32 at, auto& x, u32 count) {
            store_numbers<Codec, true>(codes, at, count, x, [=](f32 x) { return codec.code(x); });
        });
    });
}

// ------------------------------------------------------------------------------------------------------------ decoding

/// Decodes a run: adds `weight` times what it decodes to, or stores that if `IS_FRESH`.
template <typename Codec, bool IS_FRESH, bool IS_ALIGNED>
__device__ inline void decode_run(const u8* from, f32* to, Cut cut, f32 weight) {
    each_tile(cut, [=](Tile tile, u64) {
        Codec codec(Codec::read(message_of<Codec>(cut, tile, from)));
        const u8* codes = codes_of<Codec>(cut, tile, from);
        f32* sums = to + tile.start;
        each_batch(tile.len, [=](auto rows, u32 at, u32 count) {
            constexpr u32 ROWS = decltype(rows)::VALUE;
            if (lane() >= count) return;
            u32 code[ROWS];
            f32 sum[ROWS];
#pragma unroll
            for (u32 row = 0; row < ROWS; row++) {
                code[row] = load_code<Codec::BITS, IS_ALIGNED>(codes, at + row * WARP);
                sum[row] = IS_FRESH ? 0.0f : sums[at + row * WARP];
            }
#pragma unroll
            for (u32 row = 0; row < ROWS; row++) {
                f32 x = codec.number(code[row]);
                sums[at + row * WARP] = IS_FRESH ? x : canonical(sum[row] + weight * x);
            }
        });
    });
}

/// Decodes a run that lies anywhere.
template <typename Codec, bool IS_FRESH>
__device__ inline void decode_at_any(const u8* from, f32* to, Cut cut, f32 weight) {
    if (is_aligned<Codec>(from)) decode_run<Codec, IS_FRESH, true>(from, to, cut, weight);
    else decode_run<Codec, IS_FRESH, false>(from, to, cut, weight);
}

// ------------------------------------------------------------------------------------------------- what codecs inherit

/// A codec without headers.
struct Plain {
    struct Nothing {};
    static constexpr u32 HEADER = 0;
    static constexpr bool IS_FREE = true;

    __device__ explicit Plain(Nothing) {}

    static __device__ Nothing read(const u8*) {
        return {};
    }
};

/// A codec whose header is a scale, which is made of the largest magnitude.
struct Scaled {
    typedef u32 Measure;
    static constexpr u32 HEADER = 4;
    static constexpr bool IS_FREE = false;
    static constexpr u32 BEYOND = F32_INFINITY;
    static constexpr u32 LARGEST = F32_LARGEST;

    struct Lane {
        u32 largest = 0;

        __device__ void add(u32, f32 x) {
            largest = merge(magnitude(x), largest);
        }

        __device__ u32 finish(const Tile&) const {
            return fold(largest);
        }
    };

    static __device__ u32 none() {
        return 0;
    }

    static __device__ u32 merge(u32 x, u32 y) {
        return greater(x, y);
    }

    static __device__ u32 fold(u32 mine) {
        return fold_warp(mine, merge);
    }

    f32 scale;

    __device__ explicit Scaled(f32 scale) : scale(scale) {}

    static __device__ f32 read(const u8* from) {
        return load_f32(from);
    }

    __device__ void store(u8* to) const {
        store_f32(to, scale);
    }
};

/// Returns the scale that makes a magnitude `largest`: above 0 unless all numbers are 0.
__device__ inline f32 scale_to(u32 measure, f32 largest) {
    f32 scale = __uint_as_float(measure) / largest;
    return measure > 0 ? greater(scale, __uint_as_float(1)) : 0.0f;
}

// ------------------------------------------------------------------------------------------------------------ kernels

/// Defines the kernels that decode.
#define DECODE_KERNELS(NAME, CODEC)                                                                                    \
    extern "C" __global__ void NAME##_decode(const u8* from, f32* to, u64 len, u64 size, u64 tiles) {                  \
        decode_at_any<CODEC, true>(from, to, {len, size, tiles}, 1.0f);                                                \
    }                                                                                                                  \
    extern "C" __global__ void NAME##_decode_add(const u8* from, f32* to, u64 len, u64 size, u64 tiles, f32 weight) {  \
        decode_at_any<CODEC, false>(from, to, {len, size, tiles}, weight);                                             \
    }                                                                                                                  \
    ENTRY(NAME##_decode)                                                                                               \
    ENTRY(NAME##_decode_add)

/// Defines the kernels of a codec without headers, whose names begin with `NAME`.
#define PLAIN_KERNELS(NAME, CODEC)                                                                                     \
    DECODE_KERNELS(NAME, CODEC)                                                                                        \
    extern "C" __global__ void NAME##_encode(const f32* from, u8* to, u64 len, u64 size, u64 tiles, u32 policy,        \
                                             Refusing refusing) {                                                      \
        if (is_aligned<CODEC>(to)) encode_plain<CODEC, true>(from, to, {len, size, tiles}, policy, refusing);          \
        else encode_plain<CODEC, false>(from, to, {len, size, tiles}, policy, refusing);                               \
    }                                                                                                                  \
    ENTRY(NAME##_encode)

/// Defines the kernels of a codec with headers, whose names begin with `NAME`.
#define BLOCK_KERNELS(NAME, CODEC)                                                                                     \
    DECODE_KERNELS(NAME, CODEC)                                                                                        \
    extern "C" __global__ void NAME##_encode(const f32* from, u8* to, u64 len, u64 size, u64 tiles, u32 policy,        \
                                             Refusing refusing) {                                                      \
        encode_blocks<CODEC>(from, to, {len, size, tiles}, policy, refusing);                                          \
    }                                                                                                                  \
    extern "C" __global__ void NAME##_small(const f32* from, u8* to, u64 len, u64 size, u64 tiles, u32 policy,         \
                                            Refusing refusing) {                                                       \
        encode_small<CODEC>(from, to, {len, size, tiles}, policy, refusing);                                           \
    }                                                                                                                  \
    extern "C" __global__ void NAME##_measure(const f32* from, u8* to, u64 len, u64 size, u64 tiles, u32 policy,       \
                                              CODEC::Measure* measures, Refusing refusing) {                           \
        measure_blocks<CODEC>(from, to, measures, {len, size, tiles}, policy, refusing);                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                               \
        NAME##_head(const CODEC::Measure* measures, u8* to, u64 len, u64 size, u64 tiles) {                            \
        head_blocks<CODEC>(measures, to, {len, size, tiles});                                                          \
    }                                                                                                                  \
    ENTRY(NAME##_encode)                                                                                               \
    ENTRY(NAME##_small)                                                                                                \
    ENTRY(NAME##_measure)                                                                                              \
    ENTRY(NAME##_head)

/// Defines the kernel that writes codes which depend on their block's header, of blocks larger than a tile.
#define CODE_KERNEL(NAME, CODEC)                                                                                       \
    extern "C" __global__ void NAME##_code(const f32* from, u8* to, u64 len, u64 size, u64 tiles, u32 policy) {        \
        code_blocks<CODEC>(from, to, {len, size, tiles}, policy);                                                      \
    }                                                                                                                  \
    ENTRY(NAME##_code)
