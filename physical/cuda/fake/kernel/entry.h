// What the driver and the kernels share: a kernel by its name, and where its threads are.
#pragma once
#include <cstddef>
#include <cstdint>

// Kernels that are compiled later, by nvrtc.cpp, find these in the library.
#ifdef FAKE_NVRTC
#pragma GCC visibility push(default)
#else
#pragma GCC visibility push(protected)
#endif
struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace fake {
// Lets the calling thread wait for the others of its block.
void wait_for_block();
// Lets every lane of the warp give 8 bytes, and returns those of all 32 lanes, which stay until the call after the next.
const uint64_t *exchange(unsigned mask, uint64_t mine, const char *what);
// Number of lanes that the calling thread's warp has.
unsigned lanes();

// A parameter as the driver copies it: every one has a place of 64 bytes.
constexpr size_t PLACE = 64;
struct Parameter {
    size_t size;
    // True if it is a pointer or may have some, which are those of device memory.
    bool has_pointers;
};

// A kernel, in the list of all kernels of the library.
struct Entry {
    const char *name;
    // Runs one thread of the kernel.
    void (*thread)(const unsigned char *parameters);
    const Parameter *parameters;
    size_t count;
    Entry *next;
    Entry(const char *name, void (*thread)(const unsigned char *), const Parameter *parameters, size_t count);
};
} // namespace fake
#pragma GCC visibility pop
