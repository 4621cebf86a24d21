// What a communicator does on streams: operations wait there for their turn, and then a thread exchanges the data.
#include "comm.h"
#include <cstring>

namespace nccl {
static uint64_t launched;

// Connects the ranks that use each other for the first time. The others have to begin the same.
//
// NCCL visits all new peers of a group in an order of its own, and waits for each; nothing of the group begins before.
// Where that goes well only if the others' groups are alike, it goes wrong here.
static ncclResult_t connect(Comm *comm, const std::vector<Call> &calls) {
    std::vector<Message> questions;
    for (const Call &call : calls) {
        bool is_message = call.what == What::Send || call.what == What::Recv;
        if (is_message && call.peer == comm->hello.rank) continue;
        auto key = is_message ? std::make_pair(int(call.what), call.peer) : std::make_pair(-1, -1);
        if (!comm->connected.insert(key).second) continue;
        Message question = {Kind::Connect};
        question.what = call.what;
        question.peer = call.peer;
        questions.push_back(question);
    }
    if (questions.empty()) return ncclSuccess;
    if (calls.size() > 1) {
        return fail(ncclInternalError, "Message truncated : received 512 bytes instead of 256 (a group of %zu calls connects)",
                    calls.size());
    }
    Message answer = {Kind::Granted};
    return ask(comm, questions[0], &answer);
}

// Looks at messages that go together. NCCL begins them in the order of its rounds, which is by how far the peer is, eight
// at once: where others' groups are not alike, those of later rounds wait in circles.
static ncclResult_t check_messages(Comm *comm, const std::vector<Call> &calls) {
    int rank = comm->hello.rank, ranks = comm->hello.ranks, first = -1;
    bool sends = false, receives = false;
    for (const Call &call : calls) {
        bool is_sent = call.what == What::Send;
        if (!is_sent && call.what != What::Recv) continue;
        if (call.peer == rank) (is_sent ? sends : receives) = true;
        int block = (is_sent ? call.peer - rank + ranks : rank - call.peer + ranks) % ranks / 8;
        if (first >= 0 && block != first) die("a group has messages of NCCL's first eight rounds, and later ones");
        first = block;
    }
    if (sends && !receives) return fail(ncclInvalidUsage, "Trying to send to self without a matching recv");
    if (receives && !sends) return fail(ncclInvalidUsage, "Trying to recv to self without a matching send");
    return ncclSuccess;
}

ncclResult_t launch(Comm *comm, std::vector<Call> calls) {
    ncclResult_t result = check_messages(comm, calls);
    if (result == ncclSuccess) result = connect(comm, calls);
    if (result != ncclSuccess) return result;
    std::vector<CUstream> streams;
    for (const Call &call : calls) {
        bool is_new = true;
        for (CUstream stream : streams) is_new &= stream != call.stream;
        if (is_new) streams.push_back(call.stream);
    }
    uint64_t number = __atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
    auto launch = std::make_shared<Launch>(Launch{number, std::move(calls)});
    {
        std::lock_guard<std::mutex> lock(comm->mutex);
        comm->launches.push_back(launch);
    }
    auto ready = [comm, launch] {
        std::lock_guard<std::mutex> lock(comm->mutex);
        if (!launch->has_begun) {
            comm->changed.notify_all();
        }
        launch->has_begun = true;
        return launch->is_over || comm->is_aborted;
    };
    CUresult error = hexagramFakeEnqueue(comm->context, streams.data(), streams.size(), ready, &launch->wait);
    if (error != SUCCESS) {
        std::lock_guard<std::mutex> lock(comm->mutex);
        comm->launches.pop_back();
        return fail(ncclUnhandledCudaError, "Cuda failure %d", error);
    }
    comm->last = launch;
    return ncclSuccess;
}

// Elements that a rank gives and gets.
static std::pair<uint64_t, uint64_t> counts_of(const Call &call, int rank, int ranks) {
    uint64_t count = call.count;
    switch (call.what) {
    case What::AllReduce: return {count, count};
    case What::ReduceScatter: return {count * ranks, count};
    case What::AllGather: return {count, count * ranks};
    case What::Broadcast: return {rank == call.peer ? count : 0, count};
    case What::Reduce: return {count, rank == call.peer ? count : 0};
    case What::Send: return {count, 0};
    default: return {0, count};
    }
}

static bool give(Comm *comm, const Call &call, uint64_t index) {
    uint64_t count = counts_of(call, comm->hello.rank, comm->hello.ranks).first;
    Message message = {Kind::Work};
    message.what = call.what;
    message.type = call.type;
    message.reduction = call.reduction;
    message.peer = call.peer;
    message.index = index;
    message.count = call.count;
    message.bytes = count * size_of(call.type);
    void *from = nullptr;
    if (count) from = hexagramFakeOperand(comm->context, call.from, message.bytes, NAMES[int(call.what)]);
    return put(comm->data, &message, sizeof message) && put(comm->data, from, message.bytes);
}

// Takes one result. False if there will be none.
static bool take(Comm *comm, const Launch &launch) {
    Message message = {Kind::Done};
    if (!get(comm->data, &message, sizeof message)) return false;
    std::string bytes(message.bytes, 0);
    if (!get(comm->data, &bytes[0], bytes.size())) return false;
    if (message.kind == Kind::Wrong) die("%s", bytes.c_str());
    if (message.kind == Kind::Lost) {
        fail(ncclRemoteError, "rank %d has closed its connection", message.rank);
        return false;
    }
    const Call &call = launch.calls[message.index];
    uint64_t count = counts_of(call, comm->hello.rank, comm->hello.ranks).second;
    if (count == 0) return true;
    void *to = hexagramFakeOperand(comm->context, call.to, count * size_of(call.type), NAMES[int(call.what)]);
    bytes.copy(static_cast<char *>(to), bytes.size());
    return true;
}

// Carries out a launch. False if it never ends.
static bool carry_out(Comm *comm, const Launch &launch) {
    if (launch.number == settings.hang) return false;
    if (launch.number == settings.async_error.number) {
        comm->state = fail(ncclResult_t(settings.async_error.code), "HEXAGRAM_FAKE_NCCL says so");
        return false;
    }
    for (size_t i = 0; i < launch.calls.size(); i++) {
        if (!give(comm, launch.calls[i], i)) return false;
    }
    for (size_t i = 0; i < launch.calls.size(); i++) {
        if (!take(comm, launch)) return false;
    }
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
        launch->is_over = is_over;
        if (is_over) {
            comm->launches.pop_front();
            continue;
        }
        // On one host, NCCL does not notice who has died.
        // Whoever began the launch may not have said yet that it did, and does not after this.
        bool is_well = comm->state == ncclSuccess || comm->state == ncclInProgress;
        if (settings.remote && !comm->is_aborted && is_well) comm->state = ncclRemoteError;
        comm->changed.wait(lock, [&] { return comm->is_aborted.load(); });
        return;
    }
}
} // namespace nccl
