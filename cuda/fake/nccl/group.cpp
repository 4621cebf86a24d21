// Groups, and the operations in them: what is called between `ncclGroupStart` and `ncclGroupEnd` is begun by the latter,
// as one launch of each communicator.
#include "comm.h"

extern "C" CUresult cuCtxGetDevice(CUdevice *);

namespace nccl {
namespace {
struct Group {
    int depth = 0;
    // First failure in it, which ends all of it.
    ncclResult_t error = ncclSuccess;
    std::vector<Call> calls = {};
};
thread_local Group *thread_group;

Group &group() {
    if (thread_group == nullptr) thread_group = new Group();
    return *thread_group;
}

// Looks at what a call was given, as the real library does.
ncclResult_t check_call(const Call &call) {
    const char *name = NAMES[int(call.what)];
    CUdevice device;
    if (cuCtxGetDevice(&device) == NOT_PERMITTED) die("%s within a function of the host that a stream calls", name);
    need_context(name);
    ncclResult_t result = check(call.comm, name);
    if (result != ncclSuccess) return result;
    if (call.comm->is_finalized) die("%s on a communicator that is finalized", name);
    if (call.peer < 0 || call.peer >= call.comm->hello.ranks) {
        return fail(ncclInvalidArgument, "%s : invalid root or peer %d", name, call.peer);
    }
    if (call.type < 0 || call.type >= NUM_TYPES) return fail(ncclInvalidArgument, "%s : invalid type %d", name, call.type);
    if (call.reduction < 0 || call.reduction >= NUM_REDUCTIONS) {
        return fail(ncclInvalidArgument, "%s : invalid reduction operation %d", name, call.reduction);
    }
    return ncclSuccess;
}

// Begins all of a group.
ncclResult_t end_group(std::vector<Call> calls) {
    std::vector<Comm *> comms;
    for (const Call &call : calls) {
        bool is_new = true;
        for (Comm *comm : comms) is_new &= comm != call.comm;
        if (is_new) comms.push_back(call.comm);
    }
    for (Comm *comm : comms) {
        if (comm->blocks == comms[0]->blocks) continue;
        return fail(ncclInvalidUsage, "Blocking and nonblocking communicators are not allowed in the same group.");
    }
    ncclResult_t all = ncclSuccess;
    for (Comm *comm : comms) {
        std::vector<Call> mine;
        for (const Call &call : calls) {
            if (call.comm == comm) mine.push_back(call);
        }
        ncclResult_t result = begin(comm, [comm, mine] { return launch(comm, mine); });
        if (result != ncclSuccess) all = result;
    }
    return all;
}

ncclResult_t enqueue(const Call &call) {
    ncclResult_t result = check_call(call);
    if (result != ncclSuccess) {
        if (is_in_group()) group().error = result;
        return result;
    }
    // A collective of nothing is none.
    bool is_message = call.what == What::Send || call.what == What::Recv;
    if (call.count == 0 && !is_message) return ncclSuccess;
    if (!is_in_group()) return end_group({call});
    group().calls.push_back(call);
    return ncclSuccess;
}
} // namespace

bool is_in_group() { return group().depth > 0; }
} // namespace nccl

using namespace nccl;

NCCL ncclGroupStart() {
    group().depth++;
    return ncclSuccess;
}

NCCL ncclGroupEnd() {
    if (group().depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--group().depth > 0) return ncclSuccess;
    Group ended = std::move(group());
    group() = Group();
    if (ended.error == ncclSuccess) return end_group(std::move(ended.calls));
    // None of it is begun, and whoever took part cannot go on.
    for (const Call &call : ended.calls) call.comm->state = ended.error;
    return ended.error;
}

NCCL ncclAllReduce(CUdeviceptr from, CUdeviceptr to, size_t count, int type, int reduction, Comm *comm, CUstream stream) {
    return nccl::enqueue({What::AllReduce, from, to, count, type, reduction, 0, comm, stream});
}

NCCL ncclReduceScatter(CUdeviceptr from, CUdeviceptr to, size_t count, int type, int reduction, Comm *comm, CUstream stream) {
    return nccl::enqueue({What::ReduceScatter, from, to, count, type, reduction, 0, comm, stream});
}

NCCL ncclAllGather(CUdeviceptr from, CUdeviceptr to, size_t count, int type, Comm *comm, CUstream stream) {
    return nccl::enqueue({What::AllGather, from, to, count, type, 0, 0, comm, stream});
}

NCCL ncclBroadcast(CUdeviceptr from, CUdeviceptr to, size_t count, int type, int root, Comm *comm, CUstream stream) {
    return nccl::enqueue({What::Broadcast, from, to, count, type, 0, root, comm, stream});
}

NCCL ncclReduce(CUdeviceptr from, CUdeviceptr to, size_t count, int type, int reduction, int root, Comm *comm, CUstream stream) {
    return nccl::enqueue({What::Reduce, from, to, count, type, reduction, root, comm, stream});
}

NCCL ncclSend(CUdeviceptr from, size_t count, int type, int peer, Comm *comm, CUstream stream) {
    return nccl::enqueue({What::Send, from, 0, count, type, 0, peer, comm, stream});
}

NCCL ncclRecv(CUdeviceptr to, size_t count, int type, int peer, Comm *comm, CUstream stream) {
    return nccl::enqueue({What::Recv, 0, to, count, type, 0, peer, comm, stream});
}
