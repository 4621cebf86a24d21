// Sums in double precision, in the order of the host's: kernels/sums.rs. Include this after device.cuh for a kernel
// that needs a norm.
//
// A run is summed by blocks of 4096 elements, each by 64 threads; the sums of all blocks are summed in the same way by
// an entry of its own, again and again, until there is one. `device::sums::Sums` makes the launches.
#pragma once

/// Elements, or sums of them, that become one sum.
constexpr u64 SUMMED = 4096;

/// Threads of a block: four blocks of elements at a time.
constexpr u32 SUMMING = 4 * WIDE;

/// Calls `work(block, start, end, exists)` for every block of `len` elements, with the 64 threads that are its lanes.
/// All threads of the grid call it, and those of a block of threads call `work` equally often: in the end for blocks
/// that do not exist, without elements. If `len` is 0, there is one block, which is empty.
template <typename Work>
__device__ inline void each_summed(u64 len, Work work) {
    u64 blocks = len == 0 ? 1 : (len + SUMMED - 1) / SUMMED;
    u32 group = threadIdx.x / WIDE;
    for (u64 first = (u64)blockIdx.x * (SUMMING / WIDE); first < blocks; first += (u64)gridDim.x * (SUMMING / WIDE)) {
        u64 block = first + group;
        u64 start = block * SUMMED < len ? block * SUMMED : len;
        u64 end = start + SUMMED < len ? start + SUMMED : len;
        work(block, start, end, block < blocks);
    }
}

/// Adds up what the lanes of a block have summed; all of them get the sum.
__device__ inline double lanes_summed(double mine) {
    __shared__ double room[SUMMING];
    return fold(mine, room, [](double x, double y) { return x + y; });
}

/// Stores the sum of `term(i)` over each block of the elements i of a run.
template <typename Term>
__device__ inline void sum_blocks(u64 len, double* to, Term term) {
    each_summed(len, [=](u64 block, u64 start, u64 end, bool exists) {
        double mine = 0;
        u64 i = start + threadIdx.x % WIDE;
        // Eight are loaded before the first is added, as otherwise memory would wait for it; they are added in order.
#pragma unroll 1
        for (; i + 7 * WIDE < end; i += 8 * WIDE) {
            double x[8];
#pragma unroll
            for (u32 j = 0; j < 8; j++) x[j] = term(i + j * WIDE);
#pragma unroll
            for (u32 j = 0; j < 8; j++) mine += x[j];
        }
#pragma unroll 1
        for (; i < end; i += WIDE) mine += term(i);
        double sum = canonical(lanes_summed(mine));
        if (exists && threadIdx.x % WIDE == 0) to[block] = sum;
    });
}

/// Sums each of `rows` runs of sums by blocks: what a module's entry that adds up sums does.
__device__ inline void sum_sums(const double* from, u64 len, u32 rows, double* to) {
    u64 blocks = len == 0 ? 1 : (len + SUMMED - 1) / SUMMED;
    for (u32 row = 0; row < rows; row++) {
        const double* sums = from + row * len;
        sum_blocks(len, to + row * blocks, [=](u64 i) { return sums[i]; });
    }
}
