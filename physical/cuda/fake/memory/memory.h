// Memory of devices, and pinned memory of the host. See memory.cpp; ipc.cpp lends it to other processes.
#pragma once
#include "../cuda.h"
#include "../stream/schedule.h"
#include <map>

namespace fake {
enum class Kind { Device, Pool, Imported, Pinned, Registered };

struct Block {
    size_t size;
    Kind kind;
    Context *context;
    // Whether work may use it: pool memory lives from one step of a stream to another.
    bool lives;
};

// All memory by its address, as the program has it. Under the lock.
extern std::map<CUdeviceptr, Block> &blocks;

// Where in a file of this process the memory of all devices lies.
struct Place {
    int file;
    uint64_t offset;
    size_t size;
};

// Returns the block in which an address lies, or that ends there. Under the lock.
std::map<CUdeviceptr, Block>::iterator block_of(CUdeviceptr at);
// Returns true if `bytes` bytes are pinned memory of the host. Under the lock.
bool is_pinned(const void *at, size_t bytes);
// Returns true if an address is in a device's memory, whoever has it.
bool is_of_device(CUdeviceptr at);
// Returns true if it is where work finds a device's memory.
bool is_of_work(CUdeviceptr at);
// Returns where work finds `bytes` bytes, or ends the program with a line that names `what`. Without the lock.
void *operand(CUdeviceptr at, size_t bytes, Context *context, const char *what);
// Returns the number in which a parameter's address is found by a kernel. Without the lock.
uint64_t parameter(uint64_t value, bool is_pointer, Context *context, const char *kernel);
// Takes addresses for memory of a device, and lets work use it. Null if there are none left. Under the lock.
CUdeviceptr take(size_t bytes);
bool open_up(CUdeviceptr at, size_t bytes);
// Takes the memory away again, for whoever uses it later. Under the lock.
void close_up(CUdeviceptr at, const Block &block);
Place place_of(CUdeviceptr at, size_t bytes);
// Puts the memory of another process in the place of what was taken. Returns false if that cannot be. Under the lock.
bool import_to(CUdeviceptr at, const Place &place);
} // namespace fake
