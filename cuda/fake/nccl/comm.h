// A communicator of one rank. See comm.cpp for how it begins and ends, launch.cpp for what it does on streams.
#pragma once
#include "../guest.h"
#include "wire.h"
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace nccl {
// A call of an operation.
struct Call {
    What what;
    CUdeviceptr from, to;
    uint64_t count;
    int type, reduction, peer;
    ncclComm_t comm;
    CUstream stream;
};

// All operations of a group on one communicator, which run as one.
struct Launch {
    uint64_t number;
    std::vector<Call> calls;
    bool has_begun = false, is_over = false;
    std::function<void()> wait = {};
};
} // namespace nccl

struct Comm {
    ncclUniqueId id;
    // What it says of itself to the server.
    nccl::Message hello = {nccl::Kind::Hello};
    CUdevice device = 0;
    CUcontext context = nullptr;
    bool blocks = true;
    bool is_finalized = false;

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
    std::set<std::pair<int, int>> connected = {};
    std::set<void *> registered = {};

    int control = -1, data = -1;
    // Does what is in progress; and what streams have come to.
    std::thread helper = {}, mover = {};
};

namespace nccl {
// Ends the program if the thread has no context: NCCL would make one on device 0, whichever the communicator's is.
void need_context(const char *call);
// Looks whether a communicator takes calls. Ends the program if it is none any more.
ncclResult_t check(Comm *comm, const char *call);
// Does what a call is to do: now, or on a thread of its own if the communicator does not block.
ncclResult_t begin(Comm *comm, std::function<ncclResult_t()> job);
// Asks the server, and waits for its answer.
ncclResult_t ask(Comm *comm, Message message, Message *answer);
// True between `ncclGroupStart` and `ncclGroupEnd`.
bool is_in_group();
// Enqueues operations on their streams, once the ranks are connected that they need.
ncclResult_t launch(Comm *comm, std::vector<Call> calls);
// Carries out what streams have come to, until the communicator ends.
void move(Comm *comm);
} // namespace nccl
