// Quantized SGD on the device: mod.rs, with the levels and the packing of levels/mod.rs.
//
// A piece is what is packed together, at most 512 numbers of a bucket. Where a bucket is one piece, one kernel does it
// all; else the squares of pieces are summed first, then those sums bucket by bucket, in 64 lanes, and then pieces are
// packed. A block of 64 threads works on a piece: they are the host's four times 16 sums.
#include "device.cuh"

constexpr u32 PIECE = 512;
constexpr u32 LANES = 16;
constexpr u32 THREADS = 64;

/// Sums of squares below this are summed up again in double precision; see levels/mod.rs.
constexpr float SMALL = 0x1p-100f;
/// Norm below which numbers are multiplied by LIFT before they are divided by it.
constexpr float LITTLE = 0x1p-63f;
constexpr float LIFT = 0x1p96f;

/// The next states of the generator of which draws are made: x → MULTIPLIER x + 1, once and four times.
constexpr u32 MULTIPLIER = 69069;
constexpr u32 SQUARE = MULTIPLIER * MULTIPLIER;
constexpr u32 ROWS_POWER = SQUARE * SQUARE;
constexpr u32 ROWS_OFFSET = (SQUARE + 1) * (MULTIPLIER + 1);

/// Where pieces lie.
struct Layout {
    u64 len;
    /// Numbers of a bucket, at least 1.
    u64 bucket;
    /// Size of a code.
    u32 bits;
    /// Pieces of a whole bucket.
    u64 pieces;

    __device__ Layout(u64 len, u64 bucket, u32 bits)
        : len(len), bucket(bucket), bits(bits), pieces((bucket + PIECE - 1) / PIECE) {}

    /// Returns the size of `count` codes of a bucket, in bytes.
    __device__ u64 packed(u64 count) const {
        return count / PIECE * (PIECE / 8) * bits + (count % PIECE * bits + 7) / 8;
    }

    /// Returns where the message of a bucket begins.
    __device__ u64 message(u64 number) const {
        return number * (4 + packed(bucket));
    }
};

/// One piece.
struct Piece {
    u64 bucket;
    /// Number in its bucket.
    u64 number;
    /// First element.
    u64 first;
    u32 count;

    __device__ Piece(const Layout& layout, u64 piece) {
        bucket = layout.pieces == 1 ? piece : piece / layout.pieces;
        number = piece - bucket * layout.pieces;
        first = bucket * layout.bucket + number * PIECE;
        u64 end = (bucket + 1) * layout.bucket;
        u64 rest = (end < layout.len ? end : layout.len) - first;
        count = rest < PIECE ? (u32)rest : PIECE;
    }

    /// Returns where its codes begin in the message.
    __device__ u64 codes(const Layout& layout) const {
        return layout.message(bucket) + 4 + layout.packed(number * PIECE);
    }
};

/// Returns a number as it is encoded.
__device__ inline float tamed(float x, u32 not_finite) {
    return not_finite == SATURATE ? saturated(x) : x;
}

/// The numbers of a piece that a thread has: thread t has t, t + 64, …
struct Mine {
    float x[PIECE / THREADS];

    __device__ Mine(const float* from, u32 count, u32 not_finite) {
#pragma unroll
        for (u32 i = 0; i < PIECE / THREADS; i++) {
            u32 at = threadIdx.x + i * THREADS;
            x[i] = at < count ? tamed(from[at], not_finite) : 0.0f;
        }
    }
};

/// Refuses what is not finite.
__device__ inline void look(const Mine& mine, u64 first, u32 not_finite, Refusing refusing) {
    if (not_finite != REFUSE) return;
#pragma unroll
    for (u32 i = 0; i < PIECE / THREADS; i++) {
        if (!is_finite(mine.x[i])) refuse(refusing, first + threadIdx.x + i * THREADS, mine.x[i]);
    }
}

/// Returns the sum of squares of a piece, in the host's order. All threads of the block call it, and get it.
__device__ inline double sum_of_squares(const Mine& mine, const float* from, u32 count, u32 not_finite) {
    __shared__ float halves[THREADS];
    __shared__ double wide;
    __shared__ u32 some;
    u32 t = threadIdx.x;
    // Rows of 16 that are no four are all summed up with the first of fours, and a row that is none with the second.
    u32 fours = count / THREADS * THREADS;
    u32 rows = (count - fours) / LANES * LANES;
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PIECE / THREADS; i++) {
        float square = mine.x[i] * mine.x[i];
        sum = t + i * THREADS < fours ? sum + square : sum;
    }
    if (count != PIECE) {
        u32 lane = t % LANES;
#pragma unroll 1
        for (u32 at = fours; t < LANES && at < fours + rows; at += LANES) {
            float x = tamed(from[at + lane], not_finite);
            sum = sum + x * x;
        }
        if (t / LANES == 1 && fours + rows + lane < count) {
            float x = tamed(from[fours + rows + lane], not_finite);
            sum = sum + x * x;
        }
    }
    if (t == 0) some = 0;
    halves[t] = sum + __shfl_xor_sync(FULL, sum, LANES);
    __syncthreads();
    float all = halves[t % LANES] + halves[2 * LANES + t % LANES];
    for (u32 half = LANES / 2; half > 0; half /= 2) all = all + __shfl_xor_sync(FULL, all, half);
    bool exact = SMALL <= all && all <= __uint_as_float(F32_LARGEST);
    if (!exact) {
        bool mine_has = false;
#pragma unroll
        for (u32 i = 0; i < PIECE / THREADS; i++) mine_has |= magnitude(mine.x[i]) != 0;
        if (mine_has) some = 1;
        __syncthreads();
        if (t == 0) {
            double sum = 0.0;
#pragma unroll 1
            for (u32 i = 0; some && i < count; i++) {
                double x = tamed(from[i], not_finite);
                sum = sum + x * x;
            }
            wide = sum;
        }
        __syncthreads();
    }
    double result = exact ? (double)all : wide;
    // The shared memory is free again.
    __syncthreads();
    return result;
}

/// Returns the norm that is sent: NaN if a number is not finite.
__device__ inline float norm_of(double squares) {
    // What is not finite as a square was not finite as a number.
    if (!(squares < __longlong_as_double(0x7ff0000000000000))) return __uint_as_float(F32_NAN);
    float norm = (float)sqrt(squares);
    return norm <= __uint_as_float(F32_LARGEST) ? norm : __uint_as_float(F32_LARGEST);
}

/// Returns the state in which a lane's generator begins.
__device__ inline u32 start(u64 key, u32 lane) {
    u32 word = lane * 0x9e3779b9 ^ (u32)key;
    word = (word ^ word >> 16) * 0x7feb352d ^ (u32)(key >> 32);
    word = (word ^ word >> 15) * 0x846ca68b;
    return word ^ word >> 16;
}

/// Writes the codes of a piece of a bucket with this norm. All threads of the block call it.
__device__ inline void pack(const Mine& mine, u32 count, float norm, u64 key, u32 bits, u32 levels, u8* to) {
    __shared__ u32 codes[PIECE];
    u32 t = threadIdx.x;
    u32 fraction = 31 - bits;
    float limit = (float)(levels << fraction);
    bool nothing = !(norm > 0.0f);
    float lift = norm < LITTLE ? LIFT : 1.0f;
    float scale = limit / (norm * lift);
    u32 state = start(key, t % LANES);
#pragma unroll 1
    for (u32 row = 0; row <= t / LANES; row++) state = state * MULTIPLIER + 1;
#pragma unroll
    for (u32 i = 0; i < PIECE / THREADS; i++) {
        float x = mine.x[i] * lift;
        u32 fixed = (u32)lesser(fabsf(x) * scale, limit);
        u32 level = (fixed + (state >> (32 - fraction))) >> fraction;
        codes[t + i * THREADS] = nothing ? 0 : level | __float_as_uint(x) >> 31 << (bits - 1);
        state = state * ROWS_POWER + ROWS_OFFSET;
    }
    __syncthreads();
    if (count == PIECE) {
        bool aligned = (u64)to % 4 == 0;
#pragma unroll 1
        for (u32 word = t; word < LANES * bits; word += THREADS) {
            u32 lane = word % LANES;
            u32 begin = word / LANES * 32;
            u32 held = 0;
#pragma unroll 1
            for (u32 row = begin / bits; row * bits < begin + 32; row++) {
                u32 at = row * bits;
                u32 code = codes[row * LANES + lane];
                held |= at < begin ? code >> (begin - at) : code << (at - begin);
            }
            if (aligned) {
                ((u32*)to)[word] = held;
            } else {
                store_u32(to + 4 * word, held);
            }
        }
    } else {
#pragma unroll 1
        for (u32 byte = t; byte < (count * bits + 7) / 8; byte += THREADS) {
            u32 begin = byte * 8;
            u32 held = 0;
#pragma unroll 1
            for (u32 code = begin / bits; code < count && code * bits < begin + 8; code++) {
                u32 at = code * bits;
                held |= at < begin ? codes[code] >> (begin - at) : codes[code] << (at - begin);
            }
            to[byte] = (u8)held;
        }
    }
    // The shared memory is free again.
    __syncthreads();
}

/// Encodes buckets of one piece each.
extern "C" __global__ void qsgd_encode(const float* from, u64 len, u64 bucket, u64 all, u32 levels, u32 bits, u32 not_finite,
                                       u64 seed, u8* to, Refusing refusing) {
    Layout layout(len, bucket, bits);
    Keys keys = keys_of(seed);
    for (u64 i = blockIdx.x; i < all; i += gridDim.x) {
        Piece piece(layout, i);
        Mine mine(from + piece.first, piece.count, not_finite);
        look(mine, piece.first, not_finite, refusing);
        float norm = norm_of(sum_of_squares(mine, from + piece.first, piece.count, not_finite));
        if (threadIdx.x == 0) store_f32(to + layout.message(i), norm);
        pack(mine, piece.count, norm, keys.of(i), bits, levels, to + piece.codes(layout));
    }
}

/// Sums the squares of every piece.
extern "C" __global__ void qsgd_squares(const float* from, u64 len, u64 bucket, u64 all, u32 not_finite, double* squares,
                                        Refusing refusing) {
    Layout layout(len, bucket, 2);
    for (u64 i = blockIdx.x; i < all; i += gridDim.x) {
        Piece piece(layout, i);
        Mine mine(from + piece.first, piece.count, not_finite);
        look(mine, piece.first, not_finite, refusing);
        double sum = sum_of_squares(mine, from + piece.first, piece.count, not_finite);
        if (threadIdx.x == 0) squares[i] = sum;
    }
}

/// Writes the norm of every bucket, whose pieces are summed up in 64 lanes. A block of threads works on a bucket.
extern "C" __global__ void __launch_bounds__(512)
    qsgd_norms(const double* squares, u64 len, u64 bucket, u64 all, u32 bits, float* norms, u8* to) {
    __shared__ double room[WAITING];
    Layout layout(len, bucket, bits);
    auto add = [](double x, double y) { return x + y; };
    for (u64 i = blockIdx.x; i * layout.pieces < all; i += gridDim.x) {
        u64 first = i * layout.pieces;
        u64 end = first + layout.pieces < all ? first + layout.pieces : all;
        double sum = merge_lanes(squares + first, end - first, room, 0.0, add);
        if (threadIdx.x >= WIDE / 2) continue;
        for (u32 half = WIDE / 4; half > 0; half /= 2) sum = sum + __shfl_xor_sync(FULL, sum, half);
        if (threadIdx.x == 0) {
            norms[i] = norm_of(sum);
            store_f32(to + layout.message(i), norms[i]);
        }
    }
}

/// Writes the codes of every piece.
extern "C" __global__ void qsgd_pack(const float* from, u64 len, u64 bucket, u64 all, u32 levels, u32 bits, u32 not_finite,
                                     u64 seed, const float* norms, u8* to) {
    Layout layout(len, bucket, bits);
    Keys keys = keys_of(seed);
    for (u64 i = blockIdx.x; i < all; i += gridDim.x) {
        Piece piece(layout, i);
        Mine mine(from + piece.first, piece.count, not_finite);
        pack(mine, piece.count, norms[piece.bucket], keys.of(i), bits, levels, to + piece.codes(layout));
    }
}

/// Returns the distance of levels; see mod.rs.
__device__ inline float unit_of(float norm, float levels) {
    float unit = norm / levels;
    bool fits = unit * levels <= __uint_as_float(F32_LARGEST) || norm != norm;
    return fits ? unit : __uint_as_float(__float_as_uint(unit) - 1);
}

/// Returns the code at a place of a piece.
__device__ inline u32 unpack(const u8* from, u32 count, u32 bits, u32 at) {
    if (count != PIECE) {
        u32 bit = at * bits;
        u32 held = from[bit / 8];
#pragma unroll 1
        for (u32 byte = bit / 8 + 1; byte * 8 < bit + bits; byte++) held |= (u32)from[byte] << (byte - bit / 8) * 8;
        return held >> bit % 8;
    }
    bool aligned = (u64)from % 4 == 0;
    u32 bit = at / LANES * bits;
    u32 word = bit / 32 * LANES + at % LANES;
    u64 held = aligned ? ((const u32*)from)[word] : load_u32(from + 4 * word);
    if (bit % 32 + bits > 32) {
        u32 next = word + LANES;
        held |= (u64)(aligned ? ((const u32*)from)[next] : load_u32(from + 4 * next)) << 32;
    }
    return (u32)(held >> bit % 32);
}

/// Adds what a message stands for, times a weight; if `fresh`, to nothing.
extern "C" __global__ void qsgd_decode(const u8* from, u64 len, u64 bucket, u64 all, u32 levels, u32 bits, float weight,
                                       u32 fresh, float* to, Refusing refusing) {
    Layout layout(len, bucket, bits);
    for (u64 i = blockIdx.x; i < all; i += gridDim.x) {
        Piece piece(layout, i);
        float norm = load_f32(from + layout.message(piece.bucket));
        if (__float_as_uint(norm) >> 31 || __float_as_uint(norm) == F32_INFINITY) {
            damage(refusing, piece.first);
            continue;
        }
        float unit = unit_of(norm, (float)levels);
        const u8* codes = from + piece.codes(layout);
#pragma unroll 1
        for (u32 at = threadIdx.x; at < piece.count; at += blockDim.x) {
            u32 code = unpack(codes, piece.count, bits, at);
            u32 level = code & ((1u << (bits - 1)) - 1);
            if (level > levels) {
                damage(refusing, piece.first);
                break;
            }
            u32 size = __float_as_uint((float)level * unit);
            float value = __uint_as_float(size | (code >> (bits - 1) & 1) << 31) * weight;
            float* place = to + piece.first + at;
            *place = canonical(fresh ? value : *place + value);
        }
    }
}

ENTRY(qsgd_encode)
ENTRY(qsgd_squares)
ENTRY(qsgd_norms)
ENTRY(qsgd_pack)
ENTRY(qsgd_decode)
