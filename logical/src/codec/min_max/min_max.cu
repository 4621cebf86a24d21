// Eight bits for each number, relative to the range of its block: the twin of mod.rs, whose arithmetic is in
// simd.rs.

#include "device.cuh"
#include "blocks.cuh"

namespace {

/// The smallest and the largest of some numbers; two NaNs if one of them is NaN or infinite.
struct Range {
    f32 min;
    f32 max;
};

/// 2⁻¹⁰⁰: 255 ÷ a smaller range might overflow.
constexpr u32 SMALL = (127 - 100) << 23;
constexpr u32 LARGE = (127 + 100) << 23;

struct MinMax {
    typedef Range Measure;
    static constexpr u32 HEADER = 8;
    static constexpr u32 BITS = 8;
    static constexpr bool IS_FREE = false;
    static constexpr u32 BEYOND = F32_INFINITY;
    static constexpr u32 LARGEST = F32_LARGEST;

    struct Lane {
        Range range = none();

        __device__ void add(u32, f32 x) {
            range = {lesser(x, range.min), greater(x, range.max)};
        }

        __device__ Range finish(const Tile& tile) const {
            f32 nan = __uint_as_float(F32_NAN);
            return tile.is_unfit && tile.policy != SATURATE ? Range{nan, nan} : fold(range);
        }
    };

    static __device__ Range none() {
        f32 infinity = __uint_as_float(F32_INFINITY);
        return {infinity, -infinity};
    }

    static __device__ Range merge(Range x, Range y) {
        return {minimum(x.min, y.min), maximum(x.max, y.max)};
    }

    static __device__ Range fold(Range mine) {
        auto least = [](f32 x, f32 y) { return minimum(x, y); };
        auto most = [](f32 x, f32 y) { return maximum(x, y); };
        return {fold_warp(mine.min, least), fold_warp(mine.max, most)};
    }

    /// Zeros are positive.
    static __device__ Range value(Range measure, u64) {
        return {canonical(measure.min + 0.0f), canonical(measure.max + 0.0f)};
    }

    Range range;
    /// What is subtracted, and by what numbers are multiplied before and after.
    f32 base;
    f32 power;
    f32 steps;
    /// What a code is multiplied with; half of it if the range is infinite.
    f32 whole;
    bool is_wide;

    __device__ explicit MinMax(Range range) : range(range) {
        f32 infinity = __uint_as_float(F32_INFINITY);
        whole = range.max - range.min;
        power = whole == infinity ? 0.5f : whole < __uint_as_float(SMALL) ? __uint_as_float(LARGE) : 1.0f;
        base = range.min * power;
        f32 scaled = range.max * power - base;
        steps = scaled > 0.0f ? 255.0f / scaled : 0.0f;
        is_wide = whole == infinity;
        if (is_wide) whole = range.max * 0.5f - range.min * 0.5f;
    }

    static __device__ Range read(const u8* from) {
        return {load_f32(from), load_f32(from + 4)};
    }

    __device__ void store(u8* to) const {
        store_f32(to, range.min);
        store_f32(to + 4, range.max);
    }

    __device__ u32 code(f32 x) const {
        f32 y = lesser(greater((x * power - base) * steps, 0.0f), 255.0f);
        // Beside 1.5 × 2²³ the last place is 1, and the addition rounds.
        return __float_as_uint(y + 12582912.0f) & 0xff;
    }

    __device__ f32 number(u32 code) const {
        f32 part = (f32)code * (1.0f / 255.0f) * whole;
        f32 x = range.min + part;
        return canonical(is_wide ? x + part : x);
    }
};

} // namespace

BLOCK_KERNELS(min_max, MinMax)
CODE_KERNEL(min_max, MinMax)
