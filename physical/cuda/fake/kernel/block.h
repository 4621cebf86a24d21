// Grids: running the blocks of a kernel, with their threads, one after the other. See block.cpp.
#pragma once
#include "entry.h"
#include <cstdint>

namespace fake {
// Runs a kernel's whole grid. `order` says in which of many orders its blocks and threads run.
void run_grid(const Entry &entry, unsigned blocks, unsigned threads, const unsigned char *parameters, uint64_t order);
// Name of the kernel that runs now, for reports; null between kernels.
const char *running_kernel();
} // namespace fake
