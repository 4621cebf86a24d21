// Memory of devices: one file in memory, of which the program sees addresses that it may not follow.
//
// `arena` is what the program gets: nothing is mapped there, so that a host that reads or writes it ends with a fault.
// `alias` is where work finds the same bytes, a constant distance away. No address is given twice, an allocation ends
// where a page that is not mapped begins, and what is freed is unmapped: who uses memory that is not his is found out.
#include "memory.h"
#include "../fake.h"
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace fake {
std::map<CUdeviceptr, Block> &blocks = *new std::map<CUdeviceptr, Block>();

namespace {
constexpr size_t PAGE = 4096;
// Alignment of every allocation, as of CUDA's.
constexpr size_t ALIGNMENT = 256;
constexpr size_t LARGEST = size_t(1) << 40;
constexpr unsigned char FILL = 0xa5;

struct Arena {
    int file = -1;
    char *seen = nullptr;
    char *alias = nullptr;
    size_t size = 0;
    size_t taken = PAGE;

    Arena() {
        file = memfd_create("fake device", MFD_CLOEXEC);
        // As much as the system lets it have.
        for (size = LARGEST; size > PAGE; size /= 2) {
            if (ftruncate(file, size) != 0) continue;
            int hidden = MAP_ANONYMOUS | MAP_PRIVATE | MAP_NORESERVE;
            seen = static_cast<char *>(mmap(nullptr, size, PROT_NONE, hidden, -1, 0));
            alias = static_cast<char *>(mmap(nullptr, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0));
            if (seen != MAP_FAILED && alias != MAP_FAILED) return;
            if (seen != MAP_FAILED) munmap(seen, size);
            if (alias != MAP_FAILED) munmap(alias, size);
        }
        die("there are no addresses for the memory of a device");
    }
};

Arena &arena() {
    static Arena *arena = new Arena();
    return *arena;
}

char *alias_of(CUdeviceptr at) { return arena().alias + (at - CUdeviceptr(arena().seen)); }
size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
// Bytes from the beginning of an allocation to the page that is not mapped.
size_t room(size_t bytes) { return round_up(bytes ? bytes : 1, ALIGNMENT); }
char *first_page(CUdeviceptr at) { return alias_of(at) - (at % PAGE); }
size_t all_pages(CUdeviceptr at, size_t bytes) { return at % PAGE + room(bytes); }

// Looks whether somebody has written past the end.
void check_end(CUdeviceptr at, size_t bytes) {
    for (const char *byte = alias_of(at) + bytes; byte < alias_of(at) + room(bytes); byte++) {
        if (static_cast<unsigned char>(*byte) != FILL) die("work has written past the %zu bytes at %#lx", bytes, at);
    }
}
} // namespace

std::map<CUdeviceptr, Block>::iterator block_of(CUdeviceptr at) {
    auto block = blocks.upper_bound(at);
    if (block == blocks.begin()) return blocks.end();
    --block;
    return at - block->first <= block->second.size ? block : blocks.end();
}

bool is_of_device(CUdeviceptr at) { return at - CUdeviceptr(arena().seen) < arena().size; }

bool is_of_work(CUdeviceptr at) { return at - CUdeviceptr(arena().alias) < arena().size; }

bool is_pinned(const void *at, size_t bytes) {
    auto block = block_of(CUdeviceptr(at));
    if (block == blocks.end() || CUdeviceptr(at) + bytes > block->first + block->second.size) return false;
    return block->second.kind == Kind::Pinned || block->second.kind == Kind::Registered;
}

void *operand(CUdeviceptr at, size_t bytes, Context *context, const char *what) {
    Lock lock(mutex);
    auto block = block_of(at);
    if (block == blocks.end()) die("%s: %#lx is in no memory of a device, and in no pinned memory", what, at);
    if (!block->second.lives) die("%s: %#lx is in memory that is not allocated yet, or freed", what, at);
    size_t left = block->first + block->second.size - at;
    if (bytes > left) die("%s: %zu bytes at %#lx, where %zu are left", what, bytes, at, left);
    bool is_foreign = is_of_device(at) && block->second.context != context;
    if (is_foreign && context && !context->peers.count(block->second.context)) {
        die("%s: %#lx is in memory of device %d, which is no peer", what, at, block->second.context->device);
    }
    return is_of_device(at) ? alias_of(at) : reinterpret_cast<void *>(at);
}

uint64_t parameter(uint64_t value, bool is_pointer, Context *context, const char *kernel) {
    // Of a structure, what may be an address is one. Those of the first page are what an empty view points to.
    bool may_be = is_pointer ? value >= PAGE : is_of_device(value);
    return may_be ? reinterpret_cast<uint64_t>(operand(value, 0, context, kernel)) : value;
}

CUdeviceptr take(size_t bytes) {
    size_t pages = round_up(room(bytes), PAGE);
    if (pages > arena().size - arena().taken - PAGE) return 0;
    CUdeviceptr at = CUdeviceptr(arena().seen) + arena().taken + pages - room(bytes);
    arena().taken += pages + PAGE;
    return at;
}

bool open_up(CUdeviceptr at, size_t bytes) {
    size_t pages = all_pages(at, bytes);
    if (mprotect(first_page(at), pages, PROT_READ | PROT_WRITE) != 0) return false;
    memset(first_page(at), FILL, pages);
    return true;
}

void close_up(CUdeviceptr at, const Block &block) {
    size_t pages = all_pages(at, block.size);
    char *first = first_page(at);
    if (block.kind == Kind::Imported) {
        uint64_t offset = first - arena().alias;
        mmap(first, pages, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, arena().file, offset);
        return;
    }
    check_end(at, block.size);
    madvise(first, pages, MADV_REMOVE);
    mprotect(first, pages, PROT_NONE);
}

Place place_of(CUdeviceptr at, size_t bytes) {
    return {arena().file, uint64_t(alias_of(at) - arena().alias), bytes};
}

bool import_to(CUdeviceptr at, const Place &place) {
    char *first = first_page(at);
    uint64_t offset = place.offset - at % PAGE;
    void *where = mmap(first, all_pages(at, place.size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, place.file, offset);
    return where == first;
}
} // namespace fake

// Gives the host access to memory of a device, as of now; waits for nothing. For tests in which the host computes in place
// of a framework.
API_OF(void) hexagramFakeShow(CUdeviceptr at, size_t bytes) {
    using namespace fake;
    char *first = reinterpret_cast<char *>(at - at % PAGE);
    uint64_t offset = first_page(at) - arena().alias;
    int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
    if (mmap(first, all_pages(at, bytes), PROT_READ | PROT_WRITE, flags, arena().file, offset) != first) {
        die("the host cannot have access to %#lx", at);
    }
}
