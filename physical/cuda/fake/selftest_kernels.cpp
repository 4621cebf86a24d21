// Kernels for selftest.cpp: one for each thing that a kernel may do. They are in the library, but nobody's PTX has them.
#include "kernel/kernel.h"

struct Refusing {
    unsigned long long *record;
    unsigned long long launch, before;
};

extern "C" __global__ void selftest_add(const float *from, unsigned long long len, float by, float *to) {
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < len;
         i += (unsigned long long)gridDim.x * blockDim.x) {
        to[i] = from[i] + by;
    }
}
ENTRY(selftest_add)

// Sums by a tree in shared memory, then in one warp, then over blocks; some threads leave early, after the last barrier.
extern "C" __global__ void selftest_sum(const unsigned *from, unsigned len, unsigned *to) {
    __shared__ unsigned sums[1024];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    sums[threadIdx.x] = i < len ? from[i] : 0;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half >= 32; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x >= 32) return;
    unsigned sum = sums[threadIdx.x];
    for (unsigned by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffff, sum, by);
    if (threadIdx.x == 0) atomicAdd(to, sum);
}
ENTRY(selftest_sum)

extern "C" __global__ void selftest_warp(unsigned *to) {
    unsigned lane = threadIdx.x;
    unsigned turned = __shfl_xor_sync(0xffffffff, lane, 5);
    unsigned odd = __ballot_sync(0xffffffff, lane & 1);
    unsigned first = __shfl_sync(0xffffffff, turned, 0);
    unsigned before = __shfl_up_sync(0xffffffff, lane, 1);
    to[lane] = turned + 100 * first + 10000 * (odd == 0xaaaaaaaa) + 100000 * before;
}
ENTRY(selftest_warp)

extern "C" __global__ void selftest_refuse(Refusing r, unsigned len) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= len || i < 70) return;
    unsigned long long seen = atomicCAS(&r.record[0], 0, r.launch);
    if (seen == 0 || seen == r.launch) atomicMin(&r.record[1], (unsigned long long)i << 32 | 7);
}
ENTRY(selftest_refuse)

extern "C" __global__ void selftest_past_the_end(float *to, unsigned long long i) { to[i] = 1; }
ENTRY(selftest_past_the_end)

extern "C" __global__ void selftest_part_of_a_warp(unsigned *to) {
    if (threadIdx.x == 3) return;
    to[threadIdx.x] = __shfl_xor_sync(0xffffffff, threadIdx.x, 1);
}
ENTRY(selftest_part_of_a_warp)
