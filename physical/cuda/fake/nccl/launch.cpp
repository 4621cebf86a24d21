// What a communicator does on streams: collectives wait there for their turn, and then a thread exchanges the data.
#include "comm.h"
#include <cstring>

extern "C" CUresult cuCtxGetDevice(CUdevice *);

namespace nccl {
static uint64_t launched;

// Enqueues a collective, once the ranks are connected.
static ncclResult_t enqueue(Comm *comm, CUstream stream, const std::shared_ptr<Launch> &launch) {
    if (!comm->is_connected) {
        ncclResult_t result = ask(comm, Kind::Connect);
        if (result != ncclSuccess) return result;
        comm->is_connected = true;
    }
    launch->number = __atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
    {
        std::lock_guard<std::mutex> lock(comm->mutex);
        comm->launches.push_back(launch);
    }
    auto ready = [comm, launch] {
        std::lock_guard<std::mutex> lock(comm->mutex);
        if (!launch->has_begun) comm->changed.notify_all();
        launch->has_begun = true;
        return launch->is_over || comm->is_aborted;
    };
    CUresult error = hexagramFakeEnqueue(comm->context, stream, ready, &launch->wait);
    if (error != SUCCESS) {
        std::lock_guard<std::mutex> lock(comm->mutex);
        comm->launches.pop_back();
        return fail(ncclUnhandledCudaError, "Cuda failure %d", error);
    }
    comm->last = launch;
    return ncclSuccess;
}

// Looks at what a call was given, as the real library does, and begins it.
static ncclResult_t call(Comm *comm, CUstream stream, Launch launch) {
    Message &message = launch.message;
    const char *name = NAMES[int(message.what)];
    CUdevice device;
    if (cuCtxGetDevice(&device) == NOT_PERMITTED) die("%s within a function of the host that a stream calls", name);
    ncclResult_t result = check(comm, name);
    if (result != ncclSuccess) return result;
    if (comm->is_finalized) die("%s on a communicator that is finalized", name);
    if (message.root < 0 || message.root >= comm->ranks) {
        return fail(ncclInvalidArgument, "%s : invalid root %d", name, message.root);
    }
    if (message.type < 0 || message.type >= NUM_TYPES) return fail(ncclInvalidArgument, "%s : invalid type %d", name, message.type);
    if (message.reduction < 0 || message.reduction >= NUM_REDUCTIONS) {
        return fail(ncclInvalidArgument, "%s : invalid reduction operation %d", name, message.reduction);
    }
    // A collective of nothing is none.
    if (message.count == 0) return ncclSuccess;
    message.rank = comm->rank;
    message.ranks = comm->ranks;
    auto shared = std::make_shared<Launch>(launch);
    return begin(comm, [comm, stream, shared] { return enqueue(comm, stream, shared); });
}

// Bytes that a rank gives and gets.
static std::pair<size_t, size_t> bytes_of(const Message &message) {
    size_t bytes = message.count * size_of(message.type), ranks = size_t(message.ranks);
    switch (message.what) {
    case What::ReduceScatter: return {bytes * ranks, bytes};
    case What::AllGather: return {bytes, bytes * ranks};
    case What::Broadcast: return {message.rank == message.root ? bytes : 0, bytes};
    case What::Reduce: return {bytes, message.rank == message.root ? bytes : 0};
    case What::Send: return {bytes, 0};
    case What::Receive: return {0, bytes};
    default: return {bytes, bytes};
    }
}

// Carries out a launch. False if it never ends.
static bool carry_out(Comm *comm, const Launch &launch) {
    if (launch.number == settings.hang) return false;
    if (launch.number == settings.async_error.number) {
        comm->state = fail(ncclResult_t(settings.async_error.code), "HEXAGRAM_FAKE_NCCL says so");
        return false;
    }
    Message message = launch.message;
    const char *name = NAMES[int(message.what)];
    auto [given, got] = bytes_of(message);
    message.bytes = given;
    const void *from = given ? hexagramFakeOperand(comm->context, launch.from, given, name) : nullptr;
    if (!put(comm->data, &message, sizeof message) || !put(comm->data, from, given)) return false;
    if (!get(comm->data, &message, sizeof message)) return false;
    std::string bytes(message.bytes, 0);
    if (!get(comm->data, &bytes[0], bytes.size())) return false;
    if (message.is_wrong) die("%s", bytes.c_str());
    if (got) memcpy(hexagramFakeOperand(comm->context, launch.to, got, name), bytes.data(), bytes.size());
    return true;
}

void move(Comm *comm) {
    std::unique_lock<std::mutex> lock(comm->mutex);
    for (;;) {
        auto has_work = [&] { return !comm->launches.empty() && comm->launches.front()->has_begun; };
        comm->changed.wait(lock, [&] { return comm->is_ending || has_work(); });
        if (comm->is_aborted || !has_work()) return;
        std::shared_ptr<Launch> launch = comm->launches.front();
        lock.unlock();
        bool is_over = carry_out(comm, *launch);
        lock.lock();
        // On one host, NCCL does not notice who has died.
        if (!is_over) return comm->changed.wait(lock, [&] { return comm->is_aborted.load(); });
        launch->is_over = true;
        comm->launches.pop_front();
    }
}
} // namespace nccl

using namespace nccl;

static Message message(What what, size_t count, int type, int reduction, int root) {
    Kind kind = what == What::Send ? Kind::Send : what == What::Receive ? Kind::Receive : Kind::Work;
    Message message = {kind, 0, 0, what, type, reduction, root};
    message.count = count;
    return message;
}

NCCL ncclAllReduce(CUdeviceptr from, CUdeviceptr to, size_t count, int type, int reduction, Comm *comm, CUstream stream) {
    return call(comm, stream, {0, message(What::AllReduce, count, type, reduction, 0), from, to});
}

NCCL ncclReduceScatter(CUdeviceptr from, CUdeviceptr to, size_t count, int type, int reduction, Comm *comm, CUstream stream) {
    return call(comm, stream, {0, message(What::ReduceScatter, count, type, reduction, 0), from, to});
}

NCCL ncclAllGather(CUdeviceptr from, CUdeviceptr to, size_t count, int type, Comm *comm, CUstream stream) {
    return call(comm, stream, {0, message(What::AllGather, count, type, 0, 0), from, to});
}

NCCL ncclBroadcast(CUdeviceptr from, CUdeviceptr to, size_t count, int type, int root, Comm *comm, CUstream stream) {
    return call(comm, stream, {0, message(What::Broadcast, count, type, 0, root), from, to});
}

NCCL ncclReduce(CUdeviceptr from, CUdeviceptr to, size_t count, int type, int reduction, int root, Comm *comm, CUstream stream) {
    return call(comm, stream, {0, message(What::Reduce, count, type, reduction, root), from, to});
}

NCCL ncclSend(CUdeviceptr from, size_t count, int type, int peer, Comm *comm, CUstream stream) {
    return call(comm, stream, {0, message(What::Send, count, type, 0, peer), from, 0});
}

NCCL ncclRecv(CUdeviceptr to, size_t count, int type, int peer, Comm *comm, CUstream stream) {
    return call(comm, stream, {0, message(What::Receive, count, type, 0, peer), 0, to});
}
