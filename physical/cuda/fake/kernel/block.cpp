// Grids: runs the blocks of a kernel one after the other, and the threads of a block warp by warp.
//
// A thread runs until it ends or waits. It is on a stack of its own only while it waits: a stack whose thread has ended
// takes the next thread that has not begun, so that a kernel without barriers runs as a loop. Blocks and threads run in
// an order that changes from launch to launch, so that a kernel which needs an order is found out. One thread of the
// host runs kernels; nothing here is locked.
#include "block.h"
#include "../fake.h"
#include "fiber.h"
#include <numeric>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace fake {
namespace {
constexpr unsigned WARP = 32;
constexpr unsigned MOST = 1024;
constexpr unsigned NOBODY = MOST;

enum class State { Ended, Ready, AtWarp, AtBlock };

struct Thread {
    State state; // Ended, too, before it begins.
    // Its stack while it waits.
    Fiber *fiber;
    // Number of exchanges with its warp so far: the last bit says in which of two rows it gives its value.
    unsigned exchanges;
};

const Entry *entry;
const unsigned char *parameters;
Thread threads[MOST];
unsigned count;
uint64_t rows[MOST / WARP][2][WARP];
Fiber scheduler;
auto &unused = *new std::vector<Fiber *>();
size_t stacks;
// The thread that runs, and the stack on which it does.
unsigned running;
Fiber *stack;
// First thread of the warp that runs.
unsigned warp;
bool is_backward;
// Number of its threads that have begun, in the order in which they do.
unsigned begun;

unsigned lanes_of(unsigned first) { return count - first < WARP ? count - first : WARP; }

unsigned lane_at(unsigned place) { return warp + (is_backward ? lanes_of(warp) - 1 - place : place); }

// What every stack does: runs threads that have not begun, until there is none.
void run_threads() {
    for (;;) {
        while (begun < lanes_of(warp)) {
            running = lane_at(begun++);
            threadIdx.x = running;
            entry->thread(parameters);
            threads[running].state = State::Ended;
        }
        unused.push_back(stack);
        stack->switch_to(scheduler);
    }
}

// Begins threads of the warp until one of them waits, or none is left.
void begin() {
    if (unused.empty()) unused.push_back(new Fiber(run_threads, stacks++));
    stack = unused.back();
    unused.pop_back();
    scheduler.switch_to(*stack);
}

// Lets a thread run on until it waits or ends.
void resume(unsigned thread) {
    running = thread;
    threadIdx.x = thread;
    stack = threads[thread].fiber;
    scheduler.switch_to(*stack);
}

// Leaves the calling thread until the others have come as far.
void wait_as(State state) {
    threads[running].state = state;
    threads[running].fiber = stack;
    stack->switch_to(scheduler);
}

unsigned how_many(State state) {
    unsigned sum = 0;
    for (unsigned thread = warp; thread < warp + lanes_of(warp); thread++) sum += threads[thread].state == state;
    return sum;
}

// Runs the threads of one warp until all that have not ended wait for the block.
void run_warp() {
    for (;;) {
        while (begun < lanes_of(warp)) begin();
        for (unsigned place = 0; place < lanes_of(warp); place++) {
            if (threads[lane_at(place)].state == State::Ready) resume(lane_at(place));
        }
        unsigned waiting = how_many(State::AtWarp);
        if (waiting == 0) return;
        if (waiting < lanes_of(warp)) die("a warp of %s exchanges values, but not all of its lanes do", entry->name);
        for (unsigned thread = warp; thread < warp + waiting; thread++) threads[thread].state = State::Ready;
    }
}

void run_block() {
    for (unsigned thread = 0; thread < count; thread++) threads[thread] = {State::Ended, nullptr, 0};
    unsigned warps = (count + WARP - 1) / WARP;
    bool is_first = true;
    for (bool is_over = false; !is_over; is_first = false) {
        is_over = true;
        for (unsigned i = 0; i < warps; i++) {
            warp = WARP * (is_backward ? warps - 1 - i : i);
            begun = is_first ? 0 : lanes_of(warp);
            run_warp();
        }
        for (unsigned thread = 0; thread < count; thread++) {
            if (threads[thread].state != State::AtBlock) continue;
            threads[thread].state = State::Ready;
            is_over = false;
        }
    }
}
} // namespace

void wait_for_block() { wait_as(State::AtBlock); }

const uint64_t *exchange(unsigned mask, uint64_t mine, const char *what) {
    unsigned lane = running - warp;
    if (mask != 0xffffffff) die("%s of %s has a mask of %08x, and only the full one is known", what, entry->name, mask);
    uint64_t *row = rows[warp / WARP][threads[running].exchanges++ % 2];
    row[lane] = mine;
    wait_as(State::AtWarp);
    return row;
}

unsigned lanes() { return lanes_of(warp); }

void run_grid(const Entry &of, unsigned blocks, unsigned threads_each, const unsigned char *at, uint64_t order) {
    entry = &of;
    parameters = at;
    count = threads_each;
    gridDim = {blocks, 1, 1};
    blockDim = {threads_each, 1, 1};
    threadIdx = {0, 0, 0};
    // A step that shares no factor with the number of blocks comes to each of them once.
    uint64_t stride = order % blocks;
    while (std::gcd(stride, uint64_t(blocks)) != 1) stride++;
    for (uint64_t i = 0, block = order / 7 % blocks; i < blocks; i++, block = (block + stride) % blocks) {
        blockIdx = {unsigned(block), 0, 0};
        is_backward = (order >> (block % 60)) & 1;
        run_block();
    }
    entry = nullptr;
}

const char *running_kernel() { return entry ? entry->name : nullptr; }
} // namespace fake
