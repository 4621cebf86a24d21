// Allocation: the driver's functions that give and take memory, of devices and pinned memory of the host.
//
// Freeing does not wait for work, as no program may rely on it, unless it is set to. What `cuMemAllocAsync` gives may be used from that
// point of its stream on, and to where it is freed.
#include "../fake.h"
#include "../stream/context.h"
#include "memory.h"
#include <algorithm>
#include <cstring>
#include <sys/mman.h>

namespace fake {
static auto &pools = *new std::set<CUmemoryPool>();

static bool is_pool(CUmemoryPool pool) {
    Lock lock(mutex);
    return pools.count(pool) > 0;
}

// Gives a context memory of a device, that work may use at once, or later if it is a pool's.
static CUresult allocate(CUdeviceptr *to, size_t bytes, Context *context, Kind kind) {
    if (to == nullptr || bytes == 0) return INVALID_VALUE;
    if (counts.allocations++ == settings.alloc.number) return CUresult(settings.alloc.code);
    // What a pool keeps is for itself.
    uint64_t left = settings.memory - context->used - (kind == Kind::Pool ? 0 : context->kept);
    if (bytes > left) return OUT_OF_MEMORY;
    CUdeviceptr at = take(bytes);
    if (at == 0) return OUT_OF_MEMORY;
    bool lives = kind == Kind::Device;
    if (lives && !open_up(at, bytes)) return OUT_OF_MEMORY;
    blocks[at] = {bytes, kind, context, lives};
    context->used += bytes;
    context->kept = std::min(context->kept, settings.memory - context->used);
    counts.live += bytes;
    *to = at;
    return SUCCESS;
}

// Takes memory back. Under the lock.
static void give_back(CUdeviceptr at) {
    auto block = blocks.find(at);
    if (block == blocks.end()) return;
    if (block->second.lives) close_up(at, block->second);
    block->second.context->used -= block->second.size;
    if (block->second.kind == Kind::Pool) block->second.context->kept += block->second.size;
    counts.live -= block->second.size;
    blocks.erase(block);
}

void give_back_all(Context *context) {
    for (auto block = blocks.begin(); block != blocks.end();) {
        CUdeviceptr at = block->first;
        bool is_its = block->second.context == context && is_of_device(at);
        ++block;
        if (is_its) give_back(at);
    }
}
} // namespace fake

using namespace fake;

API cuMemAlloc_v2(CUdeviceptr *to, size_t bytes) {
    ENTER_UNSEEN(context);
    Lock lock(mutex);
    return allocate(to, bytes, context, Kind::Device);
}

API cuMemFree_v2(CUdeviceptr at) {
    ENTER_UNSEEN(context);
    if (at == 0) return SUCCESS;
    if (CUresult error = synchronise(context)) return error;
    Lock lock(mutex);
    auto block = blocks.find(at);
    if (block == blocks.end() || !is_of_device(at) || block->second.kind == Kind::Imported) return INVALID_VALUE;
    give_back(at);
    return SUCCESS;
}

// Gives memory that lives from this point of a stream on.
static CUresult allocate_in_order(CUdeviceptr *to, size_t bytes, CUstream handle) {
    ENTER(context);
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    if (!stream) return INVALID_HANDLE;
    CUresult result = allocate(to, bytes, context, Kind::Pool);
    if (result != SUCCESS) return result;
    CUdeviceptr at = *to;
    Step step;
    step.work = [at, bytes] {
        Lock lock(mutex);
        auto block = blocks.find(at);
        if (block == blocks.end()) return SUCCESS;
        block->second.lives = open_up(at, bytes);
        return block->second.lives ? SUCCESS : OUT_OF_MEMORY;
    };
    enqueue(stream, std::move(step));
    return SUCCESS;
}

API cuMemAllocAsync(CUdeviceptr *to, size_t bytes, CUstream stream) { return allocate_in_order(to, bytes, stream); }

API cuMemAllocFromPoolAsync(CUdeviceptr *to, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return is_pool(pool) ? allocate_in_order(to, bytes, stream) : INVALID_VALUE;
}

API cuMemFreeAsync(CUdeviceptr at, CUstream handle) {
    ENTER(context);
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    if (!stream) return INVALID_HANDLE;
    auto block = blocks.find(at);
    if (block == blocks.end() || !is_of_device(at) || block->second.kind == Kind::Imported) return INVALID_VALUE;
    Step step;
    step.work = [at] {
        Lock lock(mutex);
        give_back(at);
        return SUCCESS;
    };
    enqueue(stream, std::move(step));
    return SUCCESS;
}

API cuMemPoolCreate(CUmemoryPool *to, const CUmemPoolProps *properties) {
    ENTER(context);
    // Pinned memory of a device, for this process.
    if (to == nullptr || properties->allocType != 1 || properties->locationType != 1) return INVALID_VALUE;
    if (properties->device != context->device || properties->handleTypes != 0) return INVALID_VALUE;
    Lock lock(mutex);
    *to = reinterpret_cast<CUmemoryPool>(new char);
    pools.insert(*to);
    counts.dependent_pools++;
    return SUCCESS;
}

// The memory of the pool stays until it is freed.
API cuMemPoolDestroy(CUmemoryPool pool) {
    ENTER(context);
    Lock lock(mutex);
    return pools.erase(pool) ? SUCCESS : INVALID_VALUE;
}

// A device's own pool is its context.
API cuDeviceGetDefaultMemPool(CUmemoryPool *to, CUdevice device) {
    ENTER(context);
    if (device != context->device) return INVALID_DEVICE;
    *to = reinterpret_cast<CUmemoryPool>(context);
    return SUCCESS;
}

// Every pool keeps what is freed until it is trimmed, whatever it is told.
API cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTER(context);
    if ((reinterpret_cast<Context *>(pool) != context && !is_pool(pool)) || !value) return INVALID_VALUE;
    // CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, which nobody allows again.
    if (attribute == 3 && *static_cast<int *>(value) == 0) counts.dependent_pools--;
    return SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t kept) {
    ENTER(context);
    if (reinterpret_cast<Context *>(pool) != context && !is_pool(pool)) return INVALID_VALUE;
    Lock lock(mutex);
    context->kept = std::min(context->kept, uint64_t(kept));
    return SUCCESS;
}

API cuMemGetInfo_v2(size_t *available, size_t *total) {
    ENTER(context);
    Lock lock(mutex);
    *available = settings.memory - context->used - context->kept;
    *total = settings.memory;
    return SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at) {
    ENTER(context);
    Lock lock(mutex);
    auto block = block_of(at);
    if (block == blocks.end()) return NOT_FOUND;
    if (base) *base = block->first;
    if (bytes) *bytes = block->second.size;
    return SUCCESS;
}

// What is asked of an address: its context, its kind of memory, and whether other processes may open it.
API cuPointerGetAttribute(void *to, int attribute, CUdeviceptr at) {
    ENTER(context);
    Lock lock(mutex);
    auto block = block_of(at);
    if (to == nullptr || block == blocks.end()) return INVALID_VALUE;
    Kind kind = block->second.kind;
    // CU_MEMORYTYPE_HOST is 1, CU_MEMORYTYPE_DEVICE 2.
    unsigned type = is_of_device(at) ? 2 : 1;
    switch (attribute) {
    case 1: *static_cast<CUcontext *>(to) = kind == Kind::Pool ? nullptr : block->second.context; return SUCCESS;
    case 2: *static_cast<unsigned *>(to) = type; return SUCCESS;
    case 8: *static_cast<bool *>(to) = false; return SUCCESS;
    case 9: *static_cast<int *>(to) = block->second.context->device; return SUCCESS;
    case 10: *static_cast<unsigned *>(to) = kind == Kind::Device; return SUCCESS;
    }
    return INVALID_VALUE;
}

API cuMemHostAlloc(void **to, size_t bytes, unsigned) {
    ENTER_UNSEEN(context);
    if (to == nullptr || bytes == 0) return INVALID_VALUE;
    // With a page behind it that nobody may touch.
    size_t pages = (bytes + 4095) / 4096 * 4096;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *at = mmap(nullptr, pages + 4096, PROT_NONE, flags, -1, 0);
    if (at == MAP_FAILED || mprotect(at, pages, PROT_READ | PROT_WRITE) != 0) return OUT_OF_MEMORY;
    memset(at, 0xa5, pages);
    Lock lock(mutex);
    blocks[CUdeviceptr(at)] = {bytes, Kind::Pinned, context, true};
    counts.pinned++;
    counts.live_pinned += bytes;
    *to = at;
    return SUCCESS;
}

API cuMemAllocHost_v2(void **to, size_t bytes) { return cuMemHostAlloc(to, bytes, 0); }

API cuMemFreeHost(void *at) {
    ENTER_UNSEEN(context);
    if (CUresult error = synchronise(context)) return error;
    Lock lock(mutex);
    auto block = blocks.find(CUdeviceptr(at));
    if (block == blocks.end() || block->second.kind != Kind::Pinned) return INVALID_VALUE;
    munmap(at, (block->second.size + 4095) / 4096 * 4096 + 4096);
    counts.live_pinned -= block->second.size;
    blocks.erase(block);
    return SUCCESS;
}

API cuMemHostRegister_v2(void *at, size_t bytes, unsigned) {
    ENTER(context);
    if (at == nullptr || bytes == 0) return INVALID_VALUE;
    Lock lock(mutex);
    if (is_pinned(at, 1)) return HOST_MEMORY_ALREADY_REGISTERED;
    blocks[CUdeviceptr(at)] = {bytes, Kind::Registered, context, true};
    return SUCCESS;
}

API cuMemHostUnregister(void *at) {
    ENTER(context);
    Lock lock(mutex);
    auto block = blocks.find(CUdeviceptr(at));
    if (block == blocks.end() || block->second.kind != Kind::Registered) return HOST_MEMORY_NOT_REGISTERED;
    blocks.erase(block);
    return SUCCESS;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *to, void *at, unsigned) {
    ENTER(context);
    Lock lock(mutex);
    if (!is_pinned(at, 1)) return INVALID_VALUE;
    *to = CUdeviceptr(at);
    return SUCCESS;
}
