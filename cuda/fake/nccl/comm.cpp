// Communicators: how they begin, what they say of themselves, and how they end.
#include "comm.h"
#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>

extern "C" {
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuCtxGetDevice(CUdevice *);
CUresult cuDeviceGetAttribute(int *, int, CUdevice);
}

namespace nccl {
static auto &live_mutex = *new std::mutex();
static auto &live = *new std::set<Comm *>();
static auto &ended = *new std::set<Comm *>();

static void look_up(Comm *comm, const char *call) {
    std::lock_guard<std::mutex> lock(live_mutex);
    if (!live.count(comm)) die("%s of a communicator that is none, or was destroyed or aborted", call);
}

// Communicators that are being ended.
static std::atomic<int> ending;

// What a program lets run into its end: nobody knows what the driver does then.
[[gnu::destructor]] static void look_for_endings() {
    if (settings.abort && ending) die("the program ends within a call that ends a communicator");
}

void need_context(const char *call) {
    CUcontext context = nullptr;
    if (cuCtxGetCurrent(&context) != SUCCESS || context == nullptr) die("%s on a thread without a context", call);
}

ncclResult_t check(Comm *comm, const char *call) {
    if (comm == nullptr) return fail(ncclInvalidArgument, "%s : comm argument is NULL", call);
    look_up(comm, call);
    if (comm->state == ncclInProgress) {
        // As with the real library, that is the end of it.
        comm->state = ncclInvalidArgument;
        return fail(ncclInvalidArgument, "Attempt to use communicator before the previous operation returned ncclSuccess");
    }
    return comm->state;
}

ncclResult_t begin(Comm *comm, std::function<ncclResult_t()> job) {
    if (comm->blocks) {
        ncclResult_t result = job();
        if (result != ncclSuccess) comm->state = result;
        return result;
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

// Waits until the communicator is aborted.
static ncclResult_t wait_for_abort(Comm *comm) {
    std::unique_lock<std::mutex> lock(comm->mutex);
    comm->changed.wait(lock, [&] { return comm->is_aborted.load(); });
    return ncclInternalError;
}

ncclResult_t ask(Comm *comm, Message message, Message *answer) {
    if (put(comm->control, &message, sizeof message) && get(comm->control, answer, sizeof *answer)) return ncclSuccess;
    return fail(ncclRemoteError, "the connection was closed by the remote peer");
}

static ncclResult_t join(Comm *comm) {
    static std::atomic<uint64_t> joined;
    bool is_to_be = joined++ < settings.init_from;
    if (settings.init == ncclInProgress && !is_to_be) return wait_for_abort(comm);
    if (settings.init && !is_to_be) return fail(ncclResult_t(settings.init), "HEXAGRAM_FAKE_NCCL says so");
    int data = connect_to(comm->id);
    int control = connect_to(comm->id);
    {
        std::lock_guard<std::mutex> lock(comm->mutex);
        comm->data = data;
        comm->control = control;
        if (comm->is_aborted) return ncclInternalError;
    }
    Message hello = comm->hello, ready = {Kind::Ready};
    hello.is_data = true;
    if (data < 0 || control < 0 || !put(data, &hello, sizeof hello)) {
        return fail(ncclRemoteError, "nobody listens where the unique id says");
    }
    ncclResult_t result = ask(comm, comm->hello, &ready);
    if (result != ncclSuccess) return result;
    if (ready.peer) return fail(ncclResult_t(ready.peer), "Duplicate GPU detected, or ranks that disagree in number");
    std::lock_guard<std::mutex> lock(comm->mutex);
    comm->mover = std::thread(move, comm);
    return ncclSuccess;
}

// Reads the settings of a communicator as a program of some version of NCCL lays them out.
static ncclResult_t read_config(const ncclConfig_t *from, bool *blocks) {
    ncclConfig_t config = {sizeof config, MAGIC, 0, UNDEFINED, UNDEFINED, UNDEFINED, UNDEFINED, nullptr, UNDEFINED};
    if (from) memcpy(&config, from, std::min(from->size, sizeof config));
    if (config.magic != MAGIC) {
        return fail(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    if (blocking && (strcmp(blocking, "0") == 0 || strcmp(blocking, "1") == 0)) config.blocking = blocking[0] - '0';
    bool is_bool = config.blocking == UNDEFINED || config.blocking == 0 || config.blocking == 1;
    bool has_share = config.splitShare == UNDEFINED || config.splitShare == 0 || config.splitShare == 1;
    bool has_range = config.minCTAs <= config.maxCTAs && (config.minCTAs == UNDEFINED || config.minCTAs > 0);
    if (!is_bool || !has_share || !has_range) return fail(ncclInvalidArgument, "Invalid config attribute value");
    *blocks = config.blocking != 0;
    return ncclSuccess;
}

// Makes the communicator that the thread's context is to have. Null if that cannot be.
static ncclResult_t make(Comm **to, const ncclUniqueId &id, bool blocks) {
    auto *comm = new Comm{id};
    comm->blocks = blocks;
    if (cuCtxGetCurrent(&comm->context) != SUCCESS || comm->context == nullptr) {
        die("a communicator is made on a thread without a context: NCCL would take device 0");
    }
    // Where the device is: its domain, bus and number there, which slices of it share.
    int place[4] = {};
    CUresult error = cuCtxGetDevice(&comm->device);
    if (error == SUCCESS) error = cuDeviceGetAttribute(&place[0], 50, comm->device);
    if (error == SUCCESS) error = cuDeviceGetAttribute(&place[1], 33, comm->device);
    if (error == SUCCESS) error = cuDeviceGetAttribute(&place[2], 34, comm->device);
    if (error != SUCCESS) return delete comm, fail(ncclUnhandledCudaError, "Cuda failure %d", error);
    memcpy(comm->hello.device, place, sizeof place);
    // From 2.30 on, ranks may share a GPU, for whoever asks for it.
    const char *asked = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    comm->hello.shares = settings.version >= 23000 && asked && strcmp(asked, "1") == 0;
    std::lock_guard<std::mutex> lock(live_mutex);
    live.insert(comm);
    *to = comm;
    return ncclSuccess;
}

// Waits until no other rank uses this one's proxy thread: those that are on one host, as all are here, use each other's.
static void wait_for_others(Comm *comm) {
    Message leave = {Kind::Leave}, answer = {Kind::Granted};
    if (settings.proxy && comm->control >= 0) ask(comm, leave, &answer);
}

// Ends the threads of a communicator and forgets it. Its memory stays, so that its address is not given again.
static ncclResult_t forget(Comm *comm) {
    {
        std::lock_guard<std::mutex> lock(comm->mutex);
        comm->is_ending = true;
        comm->changed.notify_all();
        // The other end of a connection that just closes is one that has died.
        if (comm->is_aborted && comm->control >= 0) shutdown(comm->control, SHUT_RDWR);
        if (comm->is_aborted && comm->data >= 0) shutdown(comm->data, SHUT_RDWR);
    }
    if (comm->helper.joinable()) comm->helper.join();
    if (comm->mover.joinable()) comm->mover.join();
    std::shared_ptr<Launch> last = comm->last;
    if (last) last->wait();
    if (!comm->is_aborted) wait_for_others(comm);
    Message bye = {Kind::Bye};
    for (int socket : {comm->control, comm->data}) {
        if (socket < 0) continue;
        if (!comm->is_aborted) put(socket, &bye, sizeof bye);
        close(socket);
    }
    std::lock_guard<std::mutex> lock(live_mutex);
    live.erase(comm);
    ended.insert(comm);
    return ncclSuccess;
}

// Waits for all that was enqueued.
static ncclResult_t flush(Comm *comm) {
    std::shared_ptr<Launch> last = comm->last;
    if (last) last->wait();
    return ncclSuccess;
}
} // namespace nccl

using namespace nccl;

NCCL ncclCommInitRankConfig(ncclComm_t *to, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    if (to == nullptr) return fail(ncclInvalidArgument, "CommInitRank : newcomm argument is NULL");
    *to = nullptr;
    if (is_in_group()) die("ncclCommInitRankConfig in a group");
    bool blocks = true;
    ncclResult_t result = read_config(config, &blocks);
    if (result != ncclSuccess) return result;
    if (ranks < 1 || rank < 0 || rank >= ranks) {
        return fail(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, ranks);
    }
    result = make(to, id, blocks);
    if (result != ncclSuccess) return result;
    Comm *comm = *to;
    comm->hello.rank = rank;
    comm->hello.ranks = ranks;
    return begin(comm, [comm] { return join(comm); });
}

NCCL ncclCommInitRank(ncclComm_t *to, int ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(to, ranks, id, rank, nullptr);
}

NCCL ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *to, ncclConfig_t *config) {
    ncclResult_t result = check(comm, "ncclCommSplit");
    if (result != ncclSuccess) return result;
    if (to == nullptr) return fail(ncclInvalidArgument, "CommSplit : newcomm argument is NULL");
    *to = nullptr;
    bool blocks = comm->blocks;
    result = config ? read_config(config, &blocks) : ncclSuccess;
    if (result != ncclSuccess) return result;
    return begin(comm, [=] {
        Message message = {Kind::Split}, part = {Kind::Granted};
        message.peer = color;
        message.key = key;
        ncclResult_t result = ask(comm, message, &part);
        if (result != ncclSuccess || color < 0) return result;
        auto *child = new Comm{comm->id};
        child->hello = comm->hello;
        child->hello.world = part.world;
        child->hello.rank = part.rank;
        child->hello.ranks = part.ranks;
        child->device = comm->device;
        child->context = comm->context;
        child->blocks = blocks;
        {
            std::lock_guard<std::mutex> lock(live_mutex);
            live.insert(child);
        }
        result = join(child);
        if (result == ncclSuccess) *to = child;
        return result;
    });
}

NCCL ncclCommFinalize(ncclComm_t comm) {
    if (comm == nullptr) return ncclSuccess;
    need_context("ncclCommFinalize");
    ncclResult_t result = check(comm, "ncclCommFinalize");
    if (result != ncclSuccess) return result;
    if (comm->is_finalized) return fail(ncclInvalidArgument, "the communicator is finalized already");
    comm->is_finalized = true;
    return begin(comm, [comm] { return flush(comm); });
}

NCCL ncclCommDestroy(ncclComm_t comm) {
    if (comm == nullptr) return ncclSuccess;
    need_context("ncclCommDestroy");
    ncclResult_t result = check(comm, "ncclCommDestroy");
    if (result != ncclSuccess) return result;
    ending++;
    flush(comm);
    result = forget(comm);
    ending--;
    return result;
}

// Waits, as the real one does, until the streams have come to all that was enqueued: what runs before it is not ended.
NCCL ncclCommAbort(ncclComm_t comm) {
    if (comm == nullptr) return ncclSuccess;
    need_context("ncclCommAbort");
    look_up(comm, "ncclCommAbort");
    ending++;
    comm->is_aborted = true;
    if (settings.abort) usleep(unsigned(settings.abort) * 1000);
    ncclResult_t result = forget(comm);
    ending--;
    return result;
}

NCCL ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *to) {
    if (comm == nullptr || to == nullptr) return fail(ncclInvalidArgument, "ncclGetAsyncError : argument is NULL");
    look_up(comm, "ncclCommGetAsyncError");
    *to = comm->state;
    return ncclSuccess;
}

// Tells a number of a communicator that is there.
static ncclResult_t tell(Comm *comm, int *to, int number, const char *call) {
    ncclResult_t result = check(comm, call);
    if (result == ncclSuccess && to == nullptr) result = fail(ncclInvalidArgument, "%s : argument is NULL", call);
    if (result == ncclSuccess) *to = number;
    return result;
}

NCCL ncclCommCount(ncclComm_t comm, int *to) { return tell(comm, to, comm ? comm->hello.ranks : 0, "ncclCommCount"); }
NCCL ncclCommUserRank(ncclComm_t comm, int *to) { return tell(comm, to, comm ? comm->hello.rank : 0, "ncclCommUserRank"); }
NCCL ncclCommCuDevice(ncclComm_t comm, int *to) { return tell(comm, to, comm ? comm->device : 0, "ncclCommCuDevice"); }

NCCL ncclCommRegister(ncclComm_t comm, void *at, size_t bytes, void **handle) {
    ncclResult_t result = check(comm, "ncclCommRegister");
    if (result != ncclSuccess) return result;
    hexagramFakeOperand(comm->context, CUdeviceptr(at), bytes, "ncclCommRegister");
    *handle = new char;
    comm->registered.insert(*handle);
    return ncclSuccess;
}

NCCL ncclCommDeregister(ncclComm_t comm, void *handle) {
    ncclResult_t result = check(comm, "ncclCommDeregister");
    if (result != ncclSuccess) return result;
    return comm->registered.erase(handle) ? ncclSuccess : fail(ncclInvalidArgument, "no such registration");
}
