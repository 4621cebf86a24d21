// What all of the fake driver shares: reports, settings and counts. See common.cpp and settings.cpp.
//
// Its functions are in folders: memory/ allocates, copies and lends memory; stream/ has contexts, streams, events and the
// order of their work; kernel/ runs kernels, block by block. nccl/ is a fake NCCL.
//
// The driver reads `HEXAGRAM_FAKE_CUDA` once, when it begins: `seed=7,devices=2,memory=64M`. Numbers of calls count from
// 0, over the whole process.
#pragma once
#include <cstdint>
#include <string>

namespace fake {
// Name of the library in its reports, and of the variable that has its settings.
extern const char *const NAME;
extern const char *const VARIABLE;

// Says in one line what the program has done wrong, and ends it.
[[noreturn, gnu::format(printf, 1, 2)]] void die(const char *format, ...);

constexpr uint64_t NEVER = UINT64_MAX;

// The n-th call of a kind, and the error that it gives.
struct Nth {
    uint64_t number = NEVER;
    int code = 0;
};

struct Settings {
    // Order of work and length of delays. With 0, work is done at once and in the order of the program.
    uint64_t seed = 1;
    // Longest delay of work that nobody waits for, in microseconds; the shortest is a quarter of it. From a second on,
    // no such work is done by chance, either.
    uint64_t delay = 20000;
    uint64_t devices = 1;
    // Work queues of each context, which its streams share: what is behind a wait there waits, too, whatever its stream. 0
    // gives each stream one of its own.
    uint64_t queues = 0;
    // 1 if all devices are slices of one, which share its place on the bus.
    uint64_t slices = 0;
    // 1 if devices have pools of memory.
    uint64_t pools = 1;
    // Bytes of each device.
    uint64_t memory = 8ull << 30;
    // Version of the driver, and what `cuInit` returns.
    uint64_t version = 12000;
    uint64_t init = 0;
    // What `cuModuleLoadData` returns.
    uint64_t module = 0;
    // 1 if a call after the end of the process ends it with a line; that waits a while for one.
    uint64_t end = 0;
    // 1 while the driver compiles: modules are loaded once this is 0 again.
    uint64_t compiling = 0;
    // 1 while another thread captures a graph, which calls that the capture cannot see would spoil.
    uint64_t capture = 0;
    // `cuStreamWaitEvent` that does nothing, of those for events that have yet to happen; wait of the host for an event or a stream that returns at once.
    uint64_t skip_wait = NEVER;
    // Place in the program, as `hexagramFakePlace` names it, at which neither kind of wait of a stream does anything.
    char skip_place[32] = {};
    uint64_t skip_host_wait = NEVER;
    // 1 if all of those do, all queries say that the work is done, and functions of the host are called at once.
    uint64_t skip_host_waits = 0;
    // 1 if calls that free memory at once wait for all work of their context, as the driver's may, while no other thread
    // that calls the driver gets on.
    uint64_t synchronises = 0;
    // Launch that never ends, and all work behind it.
    uint64_t hang = NEVER;
    // Launch that breaks its context when it runs, by default with 700; work of any kind that does, by default with 999.
    Nth fault{NEVER, 700};
    Nth lost{NEVER, 999};
    // Launch that is refused, by default with 701; allocation that is, by default with 2.
    Nth launch{NEVER, 701};
    // Module that is refused, by default with 2.
    Nth load{NEVER, 2};
    // Opening of another process's memory that is refused, by default with 208.
    Nth open{NEVER, 208};
    Nth alloc{NEVER, 2};
};
extern Settings settings;

// Counts since the program began, for tests that ask.
struct Counts {
    // Allocations of device memory, and bytes of it that live now, over all devices.
    uint64_t allocations = 0, live = 0;
    // The same of pinned memory.
    uint64_t pinned = 0, live_pinned = 0;
    uint64_t events = 0, waits = 0, host_waits = 0, launches = 0, works = 0, loads = 0, opens = 0;
    // Pools of which an allocation may let its stream wait for another's work, as every one may at first.
    uint64_t dependent_pools = 0;
    // Calls that had to wait for another thread's.
    uint64_t held_up = 0;
};
extern Counts counts;

// Returns the next number of a generator that begins with the seed.
uint64_t draw();
void begin_drawing(uint64_t seed);

// Reads `key=value,…`, and has each `set`, which every library has of its own.
void read(const char *text);
void set(const std::string &key, const char *value);
// Reads `64M` or `7`, and returns where it ends.
const char *number(const char *text, uint64_t &to);
} // namespace fake
