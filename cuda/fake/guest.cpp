// What the fake driver does for another fake library, which the program knows nothing of.
#include "guest.h"
#include "context.h"
#include "fake.h"
#include "memory.h"
#include <vector>

using namespace fake;

API hexagramFakeEnqueue(CUcontext context, const CUstream *handles, size_t count, const std::function<bool()> &ready,
                        std::function<void()> *wait) {
    if (context->error) return context->error;
    Lock lock(mutex);
    std::vector<std::shared_ptr<Stream>> streams;
    for (size_t i = 0; i < count; i++) {
        streams.push_back(stream_of(handles[i], context));
        if (!streams.back()) return INVALID_HANDLE;
    }
    auto wait_for = [](const std::shared_ptr<Stream> &stream, const Point &point) {
        Step step;
        step.until = point;
        enqueue(stream, std::move(step));
    };
    for (size_t i = 1; i < count; i++) wait_for(streams[0], end_of(streams[i]));
    Step step;
    step.ready = ready;
    step.work = [] { return SUCCESS; };
    Point done = enqueue(streams[0], std::move(step));
    for (size_t i = 1; i < count; i++) wait_for(streams[i], done);
    *wait = [done, context] {
        Lock lock(mutex);
        await(lock, done, context);
    };
    return SUCCESS;
}

API_OF(void *) hexagramFakeOperand(CUcontext context, CUdeviceptr at, size_t bytes, const char *what) {
    {
        Lock lock(mutex);
        auto block = block_of(at);
        if (!is_of_device(at)) die("%s: %#lx is in no memory of a device", what, at);
        if (block != blocks.end() && block->second.context != context) {
            die("%s: %#lx is in memory of device %d, where device %d works", what, at, block->second.context->device,
                context->device);
        }
    }
    return operand(at, bytes, context, what);
}
