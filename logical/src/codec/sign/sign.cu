// One bit for each number, its sign, and the mean of the absolute values of its block: the twin of mod.rs.

#include "device.cuh"
#include "blocks.cuh"

namespace {

struct Sign {
    typedef f64 Measure;
    static constexpr u32 HEADER = 4;
    static constexpr u32 BITS = 1;
    static constexpr bool IS_FREE = true;
    static constexpr u32 BEYOND = F32_INFINITY;
    static constexpr u32 LARGEST = F32_LARGEST;

    /// A warp has the 64 lanes of the host, two in each of its own.
    struct Lane {
        f32 lower = 0.0f;
        f32 upper = 0.0f;

        __device__ void add(u32 at, f32 x) {
            if (at & WARP) upper += fabsf(x);
            else lower += fabsf(x);
        }

        __device__ f64 finish(const Tile& tile) const {
            f64 norm = fold((f64)lower + (f64)upper);
            return tile.is_unfit || norm >= __uint_as_float(F32_INFINITY) ? careful_norm(tile) : norm;
        }
    };

    /// Returns the sum that single precision cannot hold, one number after the other.
    static __device__ f64 careful_norm(const Tile& tile) {
        f64 norm = 0.0;
        for (u32 at = 0; at < tile.len; at++) {
            norm += fabs((f64)treated<Sign>(tile.from[at], tile.policy));
        }
        return norm;
    }

    static __device__ f64 none() {
        return 0.0;
    }

    static __device__ f64 merge(f64 x, f64 y) {
        return x + y;
    }

    static __device__ f64 fold(f64 mine) {
        return fold_warp(mine, merge);
    }

    static __device__ f32 value(f64 measure, u64 len) {
        return canonical((f32)(measure / (f64)len));
    }

    f32 scale;

    __device__ explicit Sign(f32 scale) : scale(scale) {}

    static __device__ f32 read(const u8* from) {
        return load_f32(from);
    }

    __device__ void store(u8* to) const {
        store_f32(to, scale);
    }

    static __device__ u32 code(f32 x) {
        return x < 0.0f;
    }

    __device__ f32 number(u32 code) const {
        return canonical(code == 0 ? scale : -scale);
    }
};

} // namespace

BLOCK_KERNELS(sign, Sign)
