// Communicators, which do not block: how they begin, and how they end.
#include "comm.h"
#include <cstring>
#include <map>
#include <set>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

extern "C" CUresult cuCtxGetCurrent(CUcontext *);

namespace nccl {
static auto &live_mutex = *new std::mutex();
static auto &live = *new std::set<Comm *>();
// Communicators that are being ended.
static std::atomic<int> ending;

// What a program lets run into its end: nobody knows what the driver does then.
[[gnu::destructor]] static void look_for_endings() {
    if (settings.abort && ending) die("the program ends within a call that ends a communicator");
}

static void look_up(Comm *comm, const char *call) {
    std::lock_guard<std::mutex> lock(live_mutex);
    if (!live.count(comm)) die("%s of a communicator that is none, or was destroyed or aborted", call);
}

void need_context(const char *call) {
    CUcontext context = nullptr;
    if (cuCtxGetCurrent(&context) != SUCCESS || context == nullptr) die("%s on a thread without a context", call);
}

ncclResult_t check(Comm *comm, const char *call) {
    need_context(call);
    look_up(comm, call);
    if (comm->state == ncclInProgress) {
        // As with the real library, that is the end of it.
        comm->state = ncclInvalidArgument;
        return fail(ncclInvalidArgument, "Attempt to use communicator before the previous operation returned ncclSuccess");
    }
    return comm->state;
}

// Calls of this thread that are to begin together, by communicator, and the number of groups that are open.
static thread_local std::vector<std::pair<Comm *, std::function<ncclResult_t()>>> grouped;
static thread_local int groups;

ncclResult_t begin(Comm *comm, std::function<ncclResult_t()> job) {
    if (groups > 0) {
        grouped.emplace_back(comm, std::move(job));
        return ncclSuccess;
    }
    if (comm->helper.joinable()) comm->helper.join();
    comm->state = ncclInProgress;
    comm->helper = std::thread([comm, job = std::move(job)] {
        dawdle();
        ncclResult_t result = job();
        // Whoever has not waited for it has ended the communicator meanwhile.
        ncclResult_t before = ncclInProgress;
        comm->state.compare_exchange_strong(before, result);
    });
    return ncclInProgress;
}

ncclResult_t ask(Comm *comm, Kind kind) {
    Message message = {kind, comm->rank, comm->ranks}, answer = {kind};
    if (put(comm->control, &message, sizeof message) && get(comm->control, &answer, sizeof answer)) return ncclSuccess;
    return fail(ncclRemoteError, "the connection was closed by the remote peer");
}

// Waits until the communicator is aborted.
static ncclResult_t wait_for_abort(Comm *comm) {
    std::unique_lock<std::mutex> lock(comm->mutex);
    comm->changed.wait(lock, [&] { return comm->is_aborted.load(); });
    return ncclInternalError;
}

static ncclResult_t join(Comm *comm) {
    static std::atomic<uint64_t> joined;
    bool is_to_be = joined++ < settings.init_from;
    if (settings.init == ncclInProgress && !is_to_be) return wait_for_abort(comm);
    if (settings.init && !is_to_be) return fail(ncclResult_t(settings.init), "HEXAGRAM_FAKE_NCCL says so");
    int control = connect_to(comm->id), data = connect_to(comm->id);
    {
        std::lock_guard<std::mutex> lock(comm->mutex);
        comm->control = control;
        comm->data = data;
        if (comm->is_aborted) return ncclInternalError;
    }
    if (control < 0 || data < 0) return fail(ncclRemoteError, "nobody listens where the unique id says");
    ncclResult_t result = ask(comm, Kind::Hello);
    std::lock_guard<std::mutex> lock(comm->mutex);
    if (result == ncclSuccess) comm->mover = std::thread(move, comm);
    return result;
}

// Connects a rank with the others of its color.
static ncclResult_t split(Comm *comm, int color, int key, Comm **to) {
    Message message = {Kind::Split, comm->rank, comm->ranks}, answer = {Kind::Split};
    message.root = color;
    message.reduction = key;
    ncclUniqueId id;
    bool is_there = put(comm->control, &message, sizeof message) && get(comm->control, &answer, sizeof answer);
    if (!is_there || !get(comm->control, &id, sizeof id)) return fail(ncclRemoteError, "the connection was closed by the remote peer");
    if (color < 0) return ncclSuccess;
    Comm *child = new Comm{id, answer.rank, answer.ranks};
    child->context = comm->context;
    {
        std::lock_guard<std::mutex> lock(live_mutex);
        live.insert(child);
    }
    ncclResult_t result = join(child);
    // As the real one does it: where the caller has said, and at last.
    if (result == ncclSuccess) __atomic_store_n(to, child, __ATOMIC_RELEASE);
    return result;
}

// Waits for all that was enqueued.
static ncclResult_t flush(Comm *comm) {
    std::shared_ptr<Launch> last = comm->last;
    if (last) last->wait();
    return ncclSuccess;
}

// Ends the threads of a communicator and forgets it. Its memory stays, so that its address is not given again.
static ncclResult_t forget(Comm *comm) {
    {
        std::lock_guard<std::mutex> lock(comm->mutex);
        comm->is_ending = true;
        comm->changed.notify_all();
        for (int socket : {comm->control, comm->data}) {
            if (comm->is_aborted && socket >= 0) shutdown(socket, SHUT_RDWR);
        }
    }
    if (comm->helper.joinable()) comm->helper.join();
    if (comm->mover.joinable()) comm->mover.join();
    flush(comm);
    // Until no other rank uses this one's proxy thread: those that are on one host, as all are here, use each other's.
    if (settings.proxy && !comm->is_aborted && comm->control >= 0) ask(comm, Kind::Leave);
    for (int socket : {comm->control, comm->data}) {
        if (socket >= 0) close(socket);
    }
    std::lock_guard<std::mutex> lock(live_mutex);
    live.erase(comm);
    ending--;
    return ncclSuccess;
}
} // namespace nccl

using namespace nccl;

NCCL ncclCommInitRankConfig(ncclComm_t *to, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    *to = nullptr;
    if (config == nullptr || config->size < sizeof *config || config->magic != MAGIC) {
        return fail(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    if (config->blocking != 0) die("a communicator blocks");
    if (ranks < 1 || rank < 0 || rank >= ranks) {
        return fail(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, ranks);
    }
    need_context("ncclCommInitRankConfig");
    Comm *comm = *to = new Comm{id, rank, ranks};
    if (cuCtxGetCurrent(&comm->context) != SUCCESS) return fail(ncclUnhandledCudaError, "Cuda failure");
    {
        std::lock_guard<std::mutex> lock(live_mutex);
        live.insert(comm);
    }
    return begin(comm, [comm] { return join(comm); });
}

NCCL ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *to, ncclConfig_t *) {
    *to = nullptr;
    ncclResult_t result = check(comm, "ncclCommSplit");
    if (result != ncclSuccess) return result;
    return begin(comm, [=] { return split(comm, color, key, to); });
}

NCCL ncclGroupStart() {
    groups++;
    return ncclSuccess;
}

NCCL ncclGroupEnd() {
    if (groups == 0) return fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--groups > 0 || grouped.empty()) return ncclSuccess;
    std::map<Comm *, std::vector<std::function<ncclResult_t()>>> jobs;
    for (auto &[comm, job] : grouped) jobs[comm].push_back(std::move(job));
    grouped.clear();
    for (auto &[comm, all] : jobs) {
        begin(comm, [all = std::move(all)] {
            ncclResult_t result = ncclSuccess;
            for (auto &job : all) result = result == ncclSuccess ? job() : result;
            return result;
        });
    }
    return ncclInProgress;
}

NCCL ncclCommCount(ncclComm_t comm, int *to) {
    ncclResult_t result = check(comm, "ncclCommCount");
    *to = comm->ranks;
    return result;
}

NCCL ncclCommUserRank(ncclComm_t comm, int *to) {
    ncclResult_t result = check(comm, "ncclCommUserRank");
    *to = comm->rank;
    return result;
}

NCCL ncclCommFinalize(ncclComm_t comm) {
    ncclResult_t result = check(comm, "ncclCommFinalize");
    if (result != ncclSuccess) return result;
    if (comm->is_finalized) return fail(ncclInvalidArgument, "the communicator is finalized already");
    comm->is_finalized = true;
    return begin(comm, [comm] { return flush(comm); });
}

NCCL ncclCommDestroy(ncclComm_t comm) {
    ncclResult_t result = check(comm, "ncclCommDestroy");
    if (result != ncclSuccess) return result;
    ending++;
    flush(comm);
    return forget(comm);
}

// Waits, as the real one does, until the streams have come to all that was enqueued: what runs before it is not ended.
NCCL ncclCommAbort(ncclComm_t comm) {
    need_context("ncclCommAbort");
    look_up(comm, "ncclCommAbort");
    ending++;
    comm->is_aborted = true;
    usleep(unsigned(settings.abort) * 1000);
    return forget(comm);
}

NCCL ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *to) {
    look_up(comm, "ncclCommGetAsyncError");
    *to = comm->state;
    return ncclSuccess;
}
