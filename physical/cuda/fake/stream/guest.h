// What the fake driver does for another fake library: work on streams, and where work finds memory. See guest.cpp.
#pragma once
#include "../cuda.h"
#include <functional>

// Enqueues work on a stream of a context: it begins when `ready` is first asked, and is over when that returns true.
// `ready` must not call the driver. `wait` becomes what waits until then.
API hexagramFakeEnqueue(CUcontext context, CUstream stream, const std::function<bool()> &ready, std::function<void()> *wait);
// Returns where work finds `bytes` bytes in the memory of a context's own device, or ends the program with a line that
// names `what`.
API_OF(void *) hexagramFakeOperand(CUcontext context, CUdeviceptr at, size_t bytes, const char *what);
