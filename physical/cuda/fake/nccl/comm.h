// A communicator of one rank. See comm.cpp for how it begins and ends, launch.cpp for what it does on streams.
#pragma once
#include "../stream/guest.h"
#include "wire.h"
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace nccl {
// A collective on a stream.
struct Launch {
    uint64_t number;
    Message message;
    CUdeviceptr from, to;
    bool has_begun = false, is_over = false;
    std::function<void()> wait = {};
};
} // namespace nccl

struct Comm {
    ncclUniqueId id;
    int rank, ranks;
    CUcontext context = nullptr;
    bool is_finalized = false, is_connected = false;

    // Guards what follows. Nobody calls the driver under it, as the driver asks `ready` under a lock of its own.
    std::mutex mutex = {};
    std::condition_variable changed = {};
    // What `ncclCommGetAsyncError` says.
    std::atomic<ncclResult_t> state = ncclSuccess;
    std::atomic<bool> is_aborted = false;
    bool is_ending = false;
    std::deque<std::shared_ptr<nccl::Launch>> launches = {};
    // The last one that was enqueued, which waits for all before it.
    std::shared_ptr<nccl::Launch> last = {};

    // Connections to the server: for what is in progress, and for what streams have come to; and a thread for each.
    int control = -1, data = -1;
    std::thread helper = {}, mover = {};
};

namespace nccl {
// Ends the program if the thread has no context: NCCL would make one on device 0, whichever the communicator's is.
void need_context(const char *call);
// Looks whether a communicator takes calls. Ends the program if it is none any more.
ncclResult_t check(Comm *comm, const char *call);
// Does what a call is to do on a thread of its own.
ncclResult_t begin(Comm *comm, std::function<ncclResult_t()> job);
// Waits until all ranks have asked for the same.
ncclResult_t ask(Comm *comm, Kind kind);
// Carries out what streams have come to, until the communicator ends.
void move(Comm *comm);
} // namespace nccl
