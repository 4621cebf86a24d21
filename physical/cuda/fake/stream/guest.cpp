// What the fake driver does for another fake library, which the program knows nothing of.
#include "guest.h"
#include "../fake.h"
#include "../memory/memory.h"
#include "context.h"

using namespace fake;

API hexagramFakeEnqueue(CUcontext context, CUstream handle, const std::function<bool()> &ready,
                        std::function<void()> *wait) {
    if (context->error) return context->error;
    Lock lock(mutex);
    std::shared_ptr<Stream> stream = stream_of(handle, context);
    if (!stream) return INVALID_HANDLE;
    Step step;
    step.ready = ready;
    step.work = [] { return SUCCESS; };
    Point done = enqueue(stream, std::move(step));
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
