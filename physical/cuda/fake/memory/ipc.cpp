// Memory for other processes: a handle says where in which process's file an allocation lies.
//
// As with the real driver, a process cannot open what it has made itself, and memory of a pool has no handle.
#include "../fake.h"
#include "../stream/context.h"
#include "memory.h"
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace fake {
// What a handle has in its 64 bytes.
struct Handle {
    char mark[8];
    uint64_t process;
    CUdevice device;
    Place place;
};
static_assert(sizeof(Handle) <= sizeof(CUipcMemHandle), "handles have 64 bytes");
static constexpr char MARK[] = "fake-IPC";
} // namespace fake

using namespace fake;

API cuIpcGetMemHandle(CUipcMemHandle *to, CUdeviceptr at) {
    ENTER(context);
    Lock lock(mutex);
    auto block = block_of(at);
    if (block == blocks.end() || block->second.kind != Kind::Device) return INVALID_VALUE;
    Handle handle = {};
    memcpy(handle.mark, MARK, sizeof handle.mark);
    handle.process = uint64_t(getpid());
    handle.device = block->second.context->device;
    handle.place = place_of(block->first, block->second.size);
    memset(to, 0, sizeof *to);
    memcpy(to, &handle, sizeof handle);
    return SUCCESS;
}

API cuIpcOpenMemHandle_v2(CUdeviceptr *to, CUipcMemHandle from, unsigned) {
    ENTER(context);
    if (counts.opens++ == settings.open.number) return CUresult(settings.open.code);
    Handle handle;
    memcpy(&handle, &from, sizeof handle);
    if (memcmp(handle.mark, MARK, sizeof handle.mark) != 0) return INVALID_VALUE;
    if (handle.process == uint64_t(getpid())) return INVALID_CONTEXT;
    char path[64];
    snprintf(path, sizeof path, "/proc/%lu/fd/%d", handle.process, handle.place.file);
    handle.place.file = open(path, O_RDWR | O_CLOEXEC);
    if (handle.place.file < 0) return INVALID_VALUE;
    Lock lock(mutex);
    CUdeviceptr at = take(handle.place.size);
    bool is_there = at && import_to(at, handle.place);
    close(handle.place.file);
    if (!is_there) return OUT_OF_MEMORY;
    blocks[at] = {handle.place.size, Kind::Imported, context, true};
    *to = at;
    return SUCCESS;
}

API cuIpcCloseMemHandle(CUdeviceptr at) {
    ENTER(context);
    Lock lock(mutex);
    auto block = blocks.find(at);
    if (block == blocks.end() || block->second.kind != Kind::Imported) return INVALID_VALUE;
    close_up(at, block->second);
    blocks.erase(block);
    return SUCCESS;
}
