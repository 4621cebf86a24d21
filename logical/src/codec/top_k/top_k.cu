// Top-k on the device: mod.rs with the selection of selection.rs, the places of index_coding.rs and the bins of two_bit.rs.
//
// Selection sorts by the bits of magnitudes, from the highest on, as far as it has to: how many elements have which
// upper bits says which bits the k-th has. Of a long run
//
//   spread   counts by the upper 11 bits                          reads all
//   narrow   finds those of the k-th
//   mark     notes with a bit who reaches them; by the next 10    reads all
//   refine   counts by the last 10, of those who are marked
//   count    unmarks who is too small, counts the rest by tiles
//   scan     says how many come before each tile
//   keep     writes the values and their places
//
// Short runs and chunks have a block of threads each, which does all of that by itself.
#include "device.cuh"
#include "elements.cuh"

/// Threads of a block, but for the kernels of one block, which has more, and those of bins, which have 64.
constexpr u32 THREADS = 256;
/// Words of marks of a tile; a word is of 32 elements.
constexpr u32 TILE = THREADS;

// Bits by which elements are counted, one level after the other.
constexpr u32 UPPER = 11;
constexpr u32 MIDDLE = 10;
constexpr u32 LOWER = 10;

/// The k-th element, as far as it is known.
struct Choice {
    /// How many are to be chosen among those who have its upper bits.
    u64 left;
    /// Its upper bits, and zeros.
    u32 least;
};

/// How many elements are larger than the k-th, and how many as large.
struct Counts {
    u64 above;
    u64 equal;
};

__device__ inline Counts operator+(Counts x, Counts y) {
    return {x.above + y.above, x.equal + y.equal};
}

/// Returns the magnitude by which an element is chosen.
__device__ inline u32 weight_of(float x, u32 not_finite) {
    u32 bits = magnitude(x);
    if (not_finite != SATURATE || bits < F32_INFINITY) return bits;
    return bits > F32_INFINITY ? 0 : F32_LARGEST;
}

/// Refuses an element if it is not finite and such are refused.
__device__ inline void look(float x, u64 index, u32 not_finite, Refusing refusing) {
    if (not_finite == REFUSE && !is_finite(x)) refuse(refusing, index, x);
}

/// Counts an element with these bits. Zeros are not counted: they are what is left, and there may be many.
__device__ inline void tally(u32* bins, u32 bits) {
    if (bits != 0) atomicAdd(bins + bits, 1u);
}

/// Sets a block's own bins to 0, with all of its threads.
__device__ inline void empty(u32* bins, u32 count) {
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) bins[i] = 0;
    __syncthreads();
}

/// Adds a block's own bins to those of all, with all of its threads.
__device__ inline void pour(const u32* bins, u32 count, u64* all) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        if (bins[i] != 0) atomicAdd(all + i, (u64)bins[i]);
    }
}

__device__ inline Counts from_below(Counts x, u32 by) {
    return {__shfl_up_sync(FULL, x.above, by), __shfl_up_sync(FULL, x.equal, by)};
}

/// Returns the sum of what the threads before this one have, and in `total` that of all. All threads of the block call
/// it; they are a multiple of 32.
__device__ inline Counts sum_before(Counts mine, Counts& total) {
    __shared__ Counts warps[32];
    u32 lane = threadIdx.x % 32;
    Counts sum = mine;
#pragma unroll 1
    for (u32 by = 1; by < 32; by *= 2) {
        Counts below = from_below(sum, by);
        if (lane >= by) sum = sum + below;
    }
    if (lane == 31) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    Counts before = from_below(sum, 1);
    if (lane == 0) before = {0, 0};
    total = {0, 0};
#pragma unroll 1
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) {
        if (warp < threadIdx.x / 32) before = before + warps[warp];
        total = total + warps[warp];
    }
    __syncthreads();
    return before;
}

// --------------------------------------------------------------------------------------------- what is written of them

/// Where the elements that are kept go.
struct Sink {
    /// The values of a message.
    u8* to;
    /// The values, where they are not sent as they are.
    float* kept;
    bool whole;
    /// Size of the low part of a place.
    u32 width;
    /// Bits of all low parts and all high parts; zero before.
    u64* low;
    u64* high;
    u32 not_finite;

    /// Writes the element that has this number among those that are kept.
    __device__ void put(u64 number, u64 index, float x) const {
        float value = not_finite == SATURATE ? saturated(x) : x;
        if (whole) {
            store_f32(to + 4 * number, value);
        } else {
            kept[number] = value;
        }
        u64 bit = (index >> width) + number;
        atomicOr(high + bit / 64, (u64)1 << bit % 64);
        if (width == 0) return;
        u64 part = index & (((u64)1 << width) - 1);
        u64 at = number * width;
        atomicOr(low + at / 64, part << at % 64);
        if (at % 64 + width > 64) atomicOr(low + at / 64 + 1, part >> (64 - at % 64));
    }
};

/// Sets words to 0.
extern "C" __global__ void top_k_begin(u64* words, u64 count) {
    clear(count, words);
}

/// Copies the bits of places to a message.
extern "C" __global__ void top_k_places(const u64* low, u64 low_bytes, const u64* high, u64 high_bytes, u8* to) {
    for (u64 i = first_place(); i < low_bytes + high_bytes; i += stride()) {
        bool is_low = i < low_bytes;
        u64 at = is_low ? i : i - low_bytes;
        u64 word = is_low ? low[at / 8] : high[at / 8];
        to[i] = (u8)(word >> at % 8 * 8);
    }
}

// ------------------------------------------------------------------------------------------------------- of a long run

/// Begins a selection of k elements. One block.
extern "C" __global__ void __launch_bounds__(1024) top_k_choose(u64 k, u64* bins, Choice* choice) {
    for (u32 i = threadIdx.x; i < 1 << UPPER; i += blockDim.x) bins[i] = 0;
    if (threadIdx.x == 0) *choice = {k, 0};
}

/// Returns true if four numbers are finite. Most are, and take no look of their own then.
__device__ inline bool are_finite(const float (&x)[4]) {
    return greater(greater(magnitude(x[0]), magnitude(x[1])), greater(magnitude(x[2]), magnitude(x[3]))) < F32_INFINITY;
}

/// Counts elements by the upper bits.
extern "C" __global__ void top_k_spread(const float* from, u64 len, u32 not_finite, u64* bins, Refusing refusing) {
    __shared__ u32 mine[1 << UPPER];
    empty(mine, 1 << UPPER);
    u64 step = stride();
    u64 i = first_place();
    for (; i + 3 * step < len; i += 4 * step) {
        float x[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) x[j] = from[i + j * step];
        if (!are_finite(x)) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                look(x[j], i + j * step, not_finite, refusing);
                x[j] = __uint_as_float(weight_of(x[j], not_finite));
            }
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) tally(mine, magnitude(x[j]) >> (MIDDLE + LOWER));
    }
    for (; i < len; i += step) {
        look(from[i], i, not_finite, refusing);
        tally(mine, weight_of(from[i], not_finite) >> (MIDDLE + LOWER));
    }
    pour(mine, 1 << UPPER, bins);
}

/// Finds the bits of the k-th element by which elements were counted last, and sets the counts to 0. One block.
extern "C" __global__ void __launch_bounds__(1024) top_k_narrow(u64* bins, u32 count, u32 shift, Choice* choice) {
    u64 left = choice->left;
    u64 passed = 0;
    for (u32 begin = 0; begin < count; begin += blockDim.x) {
        u32 bin = count - 1 - (begin + threadIdx.x);
        u64 held = bins[bin];
        bins[bin] = 0;
        Counts total;
        u64 before = passed + sum_before({held, 0}, total).above;
        passed += total.above;
        if (before < left && (left <= before + held || bin == 0)) {
            choice->left = left - before;
            choice->least |= bin << shift;
        }
    }
}

/// Marks elements that reach the k-th's upper bits, and counts those that have them by the next ones.
extern "C" __global__ void top_k_mark(const float* from, u64 len, u32 not_finite, const Choice* choice, u32* marks,
                                      u64* bins) {
    __shared__ u32 mine[1 << MIDDLE];
    empty(mine, 1 << MIDDLE);
    u32 least = choice->least;
    u32 lane = threadIdx.x % 32;
    u64 step = stride() / 32;
    u64 row = first_place() / 32;
    auto mark = [=](u64 row, u32 weight, bool exists) {
        bool reaches = exists && weight >= least;
        u32 word = __ballot_sync(FULL, reaches);
        if (lane == 0) marks[row] = word;
        // All of its other bits are 0.
        u32 beyond = weight - least;
        if (reaches && beyond < 1 << (MIDDLE + LOWER)) tally(mine, beyond >> LOWER);
    };
    for (; row + 3 * step < len / 32; row += 4 * step) {
        float x[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) x[j] = from[(row + j * step) * 32 + lane];
        if (!are_finite(x)) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) x[j] = __uint_as_float(weight_of(x[j], not_finite));
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) mark(row + j * step, magnitude(x[j]), true);
    }
    for (; row * 32 < len; row += step) {
        u64 at = row * 32 + lane;
        mark(row, at < len ? weight_of(from[at], not_finite) : 0, at < len);
    }
    pour(mine, 1 << MIDDLE, bins);
}

/// Counts marked elements that have the k-th's bits so far by the last ones.
extern "C" __global__ void top_k_refine(const float* from, u64 len, u32 not_finite, const Choice* choice,
                                        const u32* marks, u64* bins) {
    __shared__ u32 mine[1 << LOWER];
    empty(mine, 1 << LOWER);
    u32 least = choice->least;
    for (u64 i = first_place(); i * 32 < len; i += stride()) {
        for (u32 word = marks[i]; word != 0; word &= word - 1) {
            u32 weight = weight_of(from[i * 32 + __ffs(word) - 1], not_finite);
            if (weight >> LOWER == least >> LOWER) tally(mine, weight & ((1 << LOWER) - 1));
        }
    }
    pour(mine, 1 << LOWER, bins);
}

/// Takes marks from elements that are smaller than the k-th, and counts the others of each tile.
extern "C" __global__ void top_k_count(const float* from, u64 len, u32 not_finite, const Choice* choice, u32* marks,
                                       Counts* counts) {
    u32 least = choice->least;
    u64 words = (len + 31) / 32;
    for (u64 tile = blockIdx.x; tile * TILE < words; tile += gridDim.x) {
        u64 at = tile * TILE + threadIdx.x;
        u32 marked = at < words ? marks[at] : 0;
        u32 stays = 0;
        Counts mine = {0, 0};
        for (u32 word = marked; word != 0; word &= word - 1) {
            u32 bit = __ffs(word) - 1;
            u32 weight = weight_of(from[at * 32 + bit], not_finite);
            mine.above += weight > least;
            mine.equal += weight == least;
            stays |= (u32)(weight >= least) << bit;
        }
        if (stays != marked) marks[at] = stays;
        Counts total;
        sum_before(mine, total);
        if (threadIdx.x == 0) counts[tile] = total;
    }
}

/// Counts that a thread sums up by itself: as many are loaded before it waits for the first.
constexpr u32 SUMMED = 8;

/// Replaces counts by the sums of those before, and puts the sum of all behind them. One block.
extern "C" __global__ void __launch_bounds__(512) top_k_scan(Counts* counts, u64 count) {
    Counts passed = {0, 0};
    for (u64 begin = 0; begin < count; begin += SUMMED * blockDim.x) {
        u64 at = begin + SUMMED * threadIdx.x;
        Counts mine[SUMMED];
        Counts sum = {0, 0};
#pragma unroll
        for (u32 j = 0; j < SUMMED; j++) mine[j] = counts[lesser(at + j, count - 1)];
#pragma unroll
        for (u32 j = 0; j < SUMMED; j++) sum = sum + (at + j < count ? mine[j] : Counts{0, 0});
        Counts total;
        Counts before = passed + sum_before(sum, total);
#pragma unroll
        for (u32 j = 0; j < SUMMED; j++) {
            if (at + j < count) counts[at + j] = before;
            before = before + mine[j];
        }
        passed = passed + total;
    }
    if (threadIdx.x == 0) counts[count] = passed;
}

/// Writes the marked elements of a run that begins at element `start` of all, behind `first` that are kept before.
/// Of those that are as large as the k-th, the first ones are kept.
extern "C" __global__ void top_k_keep(const float* from, u64 len, u64 start, u64 first, const Choice* choice,
                                      const u32* marks, const Counts* counts, u32 not_finite, u8* to, float* kept,
                                      u32 whole, u32 width, u64* low, u64* high) {
    Sink sink = {to, kept, whole != 0, width, low, high, not_finite};
    u32 least = choice->least;
    u64 left = choice->left;
    u64 words = (len + 31) / 32;
    for (u64 tile = blockIdx.x; tile * TILE < words; tile += gridDim.x) {
        u64 at = tile * TILE + threadIdx.x;
        u32 marked = at < words ? marks[at] : 0;
        u32 above = 0;
        for (u32 word = marked; word != 0; word &= word - 1) {
            above |= (u32)(weight_of(from[at * 32 + __ffs(word) - 1], not_finite) > least) << (__ffs(word) - 1);
        }
        Counts total;
        Counts mine = {(u64)__popc(above), (u64)__popc(marked & ~above)};
        Counts before = counts[tile] + sum_before(mine, total);
        for (u32 word = marked; word != 0; word &= word - 1) {
            u32 bit = __ffs(word) - 1;
            u64 number = first + before.above + (before.equal < left ? before.equal : left);
            bool is_above = above >> bit & 1;
            if (is_above || before.equal < left) {
                sink.put(number, start + at * 32 + bit, from[at * 32 + bit]);
            }
            before.above += is_above;
            before.equal += !is_above;
        }
    }
}

// ----------------------------------------------------------------------------------------------- of chunks, one a block

/// Elements of a chunk that a thread loads before it looks at the first, as otherwise memory would wait for it.
constexpr u32 AHEAD = 4;

/// Finds the k-th element of a chunk, 8 bits at a time. All threads of the block call it.
__device__ inline Choice choose(const float* from, u64 start, u64 count, u64 k, u32 not_finite, Refusing refusing) {
    __shared__ u32 bins[THREADS];
    __shared__ Choice found;
    Choice choice = {k, 0};
#pragma unroll 1
    for (i32 shift = 24; shift >= 0; shift -= 8) {
        empty(bins, THREADS);
        // Of no element of the first turn anything is known.
        u32 known = shift == 24 ? 0 : FULL << (shift + 8);
        for (u64 begin = threadIdx.x; begin < count; begin += AHEAD * THREADS) {
            float x[AHEAD];
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                u64 i = begin + j * THREADS;
                x[j] = i < count ? from[start + i] : 0.0f;
            }
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                u64 i = begin + j * THREADS;
                if (i >= count) break;
                if (shift == 24) look(x[j], start + i, not_finite, refusing);
                u32 weight = weight_of(x[j], not_finite);
                if ((weight & known) == (choice.least & known)) tally(bins, weight >> shift & 255);
            }
        }
        __syncthreads();
        u32 bin = THREADS - 1 - threadIdx.x;
        u64 held = bins[bin];
        Counts total;
        u64 before = sum_before({held, 0}, total).above;
        if (before < choice.left && (choice.left <= before + held || bin == 0)) {
            found = {choice.left - before, choice.least | bin << shift};
        }
        __syncthreads();
        choice = found;
    }
    return choice;
}

/// Writes the k largest elements of every chunk of `size`, and `last` of the last one if that is shorter.
extern "C" __global__ void top_k_chunks(const float* from, u64 len, u64 size, u64 k, u64 last, u32 not_finite, u8* to,
                                        float* kept, u32 whole, u32 width, u64* low, u64* high, Refusing refusing) {
    Sink sink = {to, kept, whole != 0, width, low, high, not_finite};
    for (u64 chunk = blockIdx.x; chunk * size < len; chunk += gridDim.x) {
        u64 start = chunk * size;
        u64 count = len - start < size ? len - start : size;
        Choice choice = choose(from, start, count, count == size ? k : last, not_finite, refusing);
        Counts passed = {chunk * k, 0};
        for (u64 begin = 0; begin < count; begin += AHEAD * THREADS) {
            // Those that follow each other are one thread's, as elements are numbered in order.
            u64 first = begin + AHEAD * threadIdx.x;
            float x[AHEAD];
            Counts mine = {0, 0};
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) x[j] = from[start + lesser(first + j, count - 1)];
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                u32 weight = weight_of(x[j], not_finite);
                mine.above += first + j < count && weight > choice.least;
                mine.equal += first + j < count && weight == choice.least;
            }
            Counts total;
            Counts before = passed + sum_before(mine, total);
            passed = passed + total;
            if (mine.above + mine.equal == 0) continue;
#pragma unroll 1
            for (u32 j = 0; j < AHEAD && first + j < count; j++) {
                float one = from[start + first + j];
                u32 weight = weight_of(one, not_finite);
                bool is_above = weight > choice.least;
                bool is_equal = weight == choice.least;
                u64 equal = before.equal < choice.left ? before.equal : choice.left;
                if (is_above || (is_equal && before.equal < choice.left)) {
                    sink.put(before.above + equal, start + first + j, one);
                }
                before = before + Counts{is_above, is_equal};
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------- values in two bits

/// Numbers that are summed up together: PIECE of two_bit.rs.
constexpr u32 PIECE = 4096;
constexpr u32 BINS = 4;

struct Add {
    __device__ double operator()(double x, double y) const {
        return x + y;
    }
};

/// Returns the sum of every `step`-th number, one after the other. All threads of a block of 64 call it.
__device__ inline double sum_in_order(const double* x, u64 count, u32 step) {
    __shared__ double some[WIDE];
    double sum = 0.0;
    for (u64 begin = 0; begin < count; begin += WIDE) {
        if (begin + threadIdx.x < count) some[threadIdx.x] = x[(begin + threadIdx.x) * step];
        __syncthreads();
#pragma unroll 1
        for (u32 i = 0; i < WIDE && begin + i < count; i++) sum = sum + some[i];
        __syncthreads();
    }
    return sum;
}

/// Returns the bin of a number of so many widths from the mean.
__device__ inline u32 bin_of(double widths) {
    if ((__double_as_longlong(widths) >> 52 & 0x7ff) == 0x7ff) return 2;
    double bin = rint(widths + 2.0);
    return bin > 0.0 ? bin < 3.0 ? (u32)bin : 3 : 0;
}

/// Sums the numbers of every piece, or the squares of their distances from the mean. A block of 64 works on a piece.
extern "C" __global__ void top_k_sum(const float* kept, u64 k, u32 squares, const double* moments, double* sums) {
    __shared__ double room[WIDE];
    double mean = squares ? moments[0] : 0.0;
    for (u64 piece = blockIdx.x; piece * PIECE < k; piece += gridDim.x) {
        u64 end = (piece + 1) * PIECE < k ? (piece + 1) * PIECE : k;
        double sum = 0.0;
        for (u64 i = piece * PIECE + threadIdx.x; i < end; i += WIDE) {
            double x = (double)kept[i];
            double away = x - mean;
            sum = sum + (squares ? away * away : x);
        }
        sum = fold(sum, room, Add());
        if (threadIdx.x == 0) sums[piece] = sum;
    }
}

/// Adds the pieces' sums up to the mean, or to the width of a bin, which is one and a half standard deviations.
extern "C" __global__ void top_k_moment(const double* sums, u64 k, u32 squares, double* moments) {
    double mean = sum_in_order(sums, (k + PIECE - 1) / PIECE, 1) / (double)k;
    if (threadIdx.x == 0) moments[squares ? 1 : 0] = squares ? 6.0 * sqrt(mean) / BINS : mean;
}

/// Writes the bins of numbers, and sums what is in each of them, piece by piece.
extern "C" __global__ void top_k_bin(const float* kept, u64 k, const double* moments, double* sums, double* counts,
                                     u8* to) {
    __shared__ double room[WIDE];
    double mean = moments[0];
    double width = moments[1];
    for (u64 piece = blockIdx.x; piece * PIECE < k; piece += gridDim.x) {
        u64 end = (piece + 1) * PIECE < k ? (piece + 1) * PIECE : k;
        double sum[BINS] = {0.0, 0.0, 0.0, 0.0};
        double count[BINS] = {0.0, 0.0, 0.0, 0.0};
        for (u64 i = piece * PIECE + threadIdx.x; i < end; i += WIDE) {
            double x = (double)kept[i];
            u32 mine = bin_of((x - mean) / width);
#pragma unroll
            for (u32 bin = 0; bin < BINS; bin++) {
                sum[bin] = bin == mine ? sum[bin] + x : sum[bin];
                count[bin] = bin == mine ? count[bin] + 1.0 : count[bin];
            }
        }
#pragma unroll
        for (u32 bin = 0; bin < BINS; bin++) {
            double all = fold(sum[bin], room, Add());
            double number = fold(count[bin], room, Add());
            if (threadIdx.x == 0) {
                sums[piece * BINS + bin] = all;
                counts[piece * BINS + bin] = number;
            }
        }
        for (u64 byte = piece * PIECE / 4 + threadIdx.x; byte * 4 < end; byte += WIDE) {
            u32 codes = 0;
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                u64 i = byte * 4 + j;
                if (i < end) codes |= bin_of(((double)kept[i] - mean) / width) << 2 * j;
            }
            to[byte] = (u8)codes;
        }
    }
}

/// Writes the means of bins.
extern "C" __global__ void top_k_means(const double* sums, const double* counts, u64 k, u8* to) {
    u64 pieces = (k + PIECE - 1) / PIECE;
    for (u32 bin = 0; bin < BINS; bin++) {
        double sum = sum_in_order(sums + bin, pieces, BINS);
        double count = sum_in_order(counts + bin, pieces, BINS);
        float mean = count > 0.0 ? (float)(sum / count) : 0.0f;
        if (threadIdx.x == 0) store_f32(to + 4 * bin, canonical(mean));
    }
}

// ----------------------------------------------------------------------------------------------------------- decoding

/// Bytes of high parts that a thread looks at.
constexpr u32 BYTES = 8;

/// Returns the word of high parts at a byte, of which there are as many.
__device__ inline u64 word_at(const u8* from, u64 at, u64 bytes) {
    u64 word = 0;
    for (u32 i = 0; i < BYTES && at + i < bytes; i++) word |= (u64)from[at + i] << 8 * i;
    return word;
}

/// Returns the low part of a place.
__device__ inline u64 low_part(const u8* from, u64 number, u32 width) {
    u64 bit = number * width;
    u64 part = 0;
    u64 last = (bit + width + 7) / 8;
    for (u64 byte = bit / 8; byte < last; byte++) {
        u64 at = byte * 8;
        part |= at < bit ? (u64)from[byte] >> (bit - at) : (u64)from[byte] << (at - bit);
    }
    return part & (((u64)1 << width) - 1);
}

/// Sets all to 0.
extern "C" __global__ void top_k_clear(float* to, u64 len) {
    clear(len, to);
}

/// Counts the ones in high parts, tile by tile.
extern "C" __global__ void top_k_ones(const u8* high, u64 bytes, Counts* counts) {
    for (u64 tile = blockIdx.x; tile * THREADS * BYTES < bytes; tile += gridDim.x) {
        u64 word = word_at(high, (tile * THREADS + threadIdx.x) * BYTES, bytes);
        Counts total;
        sum_before({(u64)__popcll(word), 0}, total);
        if (threadIdx.x == 0) counts[tile] = total;
    }
}

/// Adds what a message stands for, times a weight. It is damaged if there are other than k places, or if one is not
/// behind the one before it, or beyond the end.
extern "C" __global__ void top_k_add(const u8* values, const u8* low, const u8* high, u64 bytes, const Counts* counts,
                                     u64 k, u64 len, u32 whole, u32 width, float weight, float* to,
                                     Refusing refusing) {
    u64 tiles = (bytes + THREADS * BYTES - 1) / (THREADS * BYTES);
    if (first_place() == 0 && counts[tiles].above != k) damage(refusing, 0);
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u64 at = (tile * THREADS + threadIdx.x) * BYTES;
        u64 word = word_at(high, at, bytes);
        Counts total;
        u64 number = counts[tile].above + sum_before({(u64)__popcll(word), 0}, total).above;
        bool follows = at > 0 && at <= bytes && high[at - 1] >> 7;
        for (u64 rest = word; rest != 0 && number < k; rest &= rest - 1) {
            u32 bit = __ffsll(rest) - 1;
            if (bit > 0) follows = word >> (bit - 1) & 1;
            u64 part = low_part(low, number, width);
            u64 place = (at * 8 + bit - number) << width | part;
            if (place >= len || (follows && part <= low_part(low, number - 1, width))) {
                damage(refusing, 0);
                break;
            }
            u32 bin = whole ? 0 : values[4 * BINS + number / 4] >> 2 * (number % 4) & 3;
            float value = load_f32(values + 4 * (whole ? number : bin));
            to[place] = canonical(to[place] + weight * value);
            number++;
        }
    }
}

ENTRY(top_k_begin)
ENTRY(top_k_places)
ENTRY(top_k_choose)
ENTRY(top_k_spread)
ENTRY(top_k_narrow)
ENTRY(top_k_mark)
ENTRY(top_k_refine)
ENTRY(top_k_count)
ENTRY(top_k_scan)
ENTRY(top_k_keep)
ENTRY(top_k_chunks)
ENTRY(top_k_sum)
ENTRY(top_k_moment)
ENTRY(top_k_bin)
ENTRY(top_k_means)
ENTRY(top_k_clear)
ENTRY(top_k_ones)
ENTRY(top_k_add)
