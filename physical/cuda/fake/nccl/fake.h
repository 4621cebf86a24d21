// What all of the fake NCCL shares: its settings, and the last error. See settings.cpp.
//
// It reads `HEXAGRAM_FAKE_NCCL` once, when it is loaded: `version=22803,hang=2`. Numbers of launches count from 0, over
// the whole process.
#pragma once
#include "../fake.h"
#include "nccl.h"

namespace nccl {
using fake::die;
using fake::NEVER;

struct Settings {
    // Length of delays. With 0 there are none.
    uint64_t seed = 1;
    uint64_t version = 22803;
    // What communicators come to in place of being there; 7 if they stay in progress.
    uint64_t init = 0;
    // Number of communicators of the process, behind a colon, that come to be there all the same, before the others.
    uint64_t init_from = 0;
    // Launch after which its communicator has an error, by default 6, and whose work never ends until that is aborted.
    fake::Nth async_error{NEVER, ncclRemoteError};
    // Launch whose work never ends until its communicator is aborted.
    uint64_t hang = NEVER;
    // 1 if a rank that destroys its communicator waits until all others leave it, too.
    uint64_t proxy = 0;
    // Milliseconds that an abort takes at least. If any, the program may not end within it.
    uint64_t abort = 0;
};
extern Settings settings;

// Returns a result, and keeps what there is to say of it.
[[gnu::format(printf, 2, 3)]] ncclResult_t fail(ncclResult_t result, const char *format, ...);
// Waits for as long as the seed draws, 2 ms at most.
void dawdle();
} // namespace nccl
