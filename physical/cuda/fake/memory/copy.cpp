// Copies and fills: what streams do to bytes without a kernel.
//
// As with the real driver, host memory that is not pinned is read before the call returns, and written before it
// returns; pinned memory is read and written when the stream comes to it.
#include "../fake.h"
#include "../stream/context.h"
#include "memory.h"
#include <cstring>
#include <vector>

namespace fake {
// True if work may follow the address when it runs: it is of a device, or pinned.
static bool is_for_work(CUdeviceptr at) { return is_of_device(at) || is_pinned(reinterpret_cast<void *>(at), 1); }

static void *find(CUdeviceptr at, size_t bytes, bool is_late, const char *what) {
    // Copies reach memory of any device.
    return is_late ? operand(at, bytes, nullptr, what) : reinterpret_cast<void *>(at);
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle, bool returns_early, const char *what) {
    ENTER(context);
    if (bytes == 0) return SUCCESS;
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    if (!stream) return INVALID_HANDLE;
    bool writes_late = is_for_work(to);
    bool reads_late = is_for_work(from);
    auto kept = std::make_shared<std::vector<char>>();
    if (!reads_late && returns_early && writes_late) {
        const char *first = reinterpret_cast<const char *>(from);
        kept->assign(first, first + bytes);
    }
    Step step;
    step.work = [=] {
        void *target = find(to, bytes, writes_late, what);
        memmove(target, kept->empty() ? find(from, bytes, reads_late, what) : kept->data(), bytes);
        return SUCCESS;
    };
    Point done = enqueue(stream, std::move(step));
    return returns_early && writes_late ? SUCCESS : await(lock, done, context);
}

template <class T> static CUresult fill(CUdeviceptr to, T value, size_t count, CUstream handle, bool returns_early) {
    ENTER(context);
    if (to % sizeof value) return INVALID_VALUE;
    if (count == 0) return SUCCESS;
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    if (!stream) return INVALID_HANDLE;
    Step step;
    step.work = [=] {
        T *first = static_cast<T *>(operand(to, count * sizeof value, nullptr, "cuMemset"));
        std::fill(first, first + count, value);
        return SUCCESS;
    };
    Point done = enqueue(stream, std::move(step));
    return returns_early ? SUCCESS : await(lock, done, context);
}

static CUdeviceptr address(const void *at) { return CUdeviceptr(at); }
} // namespace fake

using namespace fake;

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy(to, address(from), bytes, stream, true, "cuMemcpyHtoDAsync");
}
API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(address(to), from, bytes, stream, true, "cuMemcpyDtoHAsync");
}
API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(to, from, bytes, stream, true, "cuMemcpyDtoDAsync");
}
API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(to, from, bytes, stream, true, "cuMemcpyAsync");
}
API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream) {
    return copy(to, from, bytes, stream, true, "cuMemcpyPeerAsync");
}
API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy(to, address(from), bytes, nullptr, false, "cuMemcpyHtoD");
}
API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy(address(to), from, bytes, nullptr, false, "cuMemcpyDtoH");
}
API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(to, from, bytes, nullptr, false, "cuMemcpyDtoD");
}
API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(to, from, bytes, nullptr, false, "cuMemcpy");
}
API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill(to, value, count, stream, true);
}
API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return fill(to, value, count, stream, true);
}
API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return fill(to, value, count, stream, true);
}
API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return fill(to, value, count, nullptr, false); }
API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) { return fill(to, value, count, nullptr, false); }
