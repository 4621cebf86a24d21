// Tests the fake NCCL by itself: what it promises to tests that stand on it. `selftest` of the folder above builds and
// runs it.
//
// One test a run: `selftest NAME`. Those that end the program with a line are told apart by the script.
#include "nccl.h"
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(CUdeviceptr *, size_t);
int cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
int cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
int cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream);
int cuStreamCreate(CUstream *, unsigned);
int cuStreamSynchronize(CUstream);
int cuStreamQuery(CUstream);
int cuLaunchHostFunc(CUstream, void (*)(void *), void *);
void hexagramFakeNcclSet(const char *);
int ncclGetUniqueId(ncclUniqueId *);
int ncclCommInitRankConfig(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
int ncclCommFinalize(ncclComm_t);
int ncclCommDestroy(ncclComm_t);
int ncclCommAbort(ncclComm_t);
int ncclCommGetAsyncError(ncclComm_t, int *);
const char *ncclGetLastError(ncclComm_t);
int ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
int ncclGroupStart();
int ncclGroupEnd();
int ncclReduce(CUdeviceptr, CUdeviceptr, size_t, int, int, int, ncclComm_t, CUstream);
int ncclSend(CUdeviceptr, size_t, int, int, ncclComm_t, CUstream);
int ncclRecv(CUdeviceptr, size_t, int, int, ncclComm_t, CUstream);
int ncclAllReduce(CUdeviceptr, CUdeviceptr, size_t, int, int, ncclComm_t, CUstream);
int ncclReduceScatter(CUdeviceptr, CUdeviceptr, size_t, int, int, ncclComm_t, CUstream);
int ncclAllGather(CUdeviceptr, CUdeviceptr, size_t, int, ncclComm_t, CUstream);
int ncclBroadcast(CUdeviceptr, CUdeviceptr, size_t, int, int, ncclComm_t, CUstream);
}

#define CHECK(what)                                                                                                    \
    if (!(what)) {                                                                                                     \
        printf("line %d: %s, %s\n", __LINE__, #what, ncclGetLastError(nullptr));                                       \
        fflush(stdout);                                                                                                \
        _exit(1);                                                                                                      \
    }
#define DO(call) CHECK((call) == 0)

// A rank: a thread with a device, a stream and a communicator that does not block.
struct Rank {
    int rank, ranks;
    ncclComm_t comm = nullptr;
    CUstream stream = nullptr;

    int state() {
        int state;
        DO(ncclCommGetAsyncError(comm, &state));
        return state;
    }
    // Waits until the communicator takes the next call.
    int settle() {
        while (state() == ncclInProgress) usleep(100);
        return state();
    }
    void begun(int result) {
        CHECK(result == ncclInProgress || result == ncclSuccess);
        DO(settle());
    }
    int join(ncclUniqueId id, int device) {
        void *context;
        DO(cuDevicePrimaryCtxRetain(&context, device));
        DO(cuCtxSetCurrent(context));
        DO(cuStreamCreate(&stream, 1));
        begin(id);
        return settle();
    }
    void begin(ncclUniqueId id) {
        ncclConfig_t config = {sizeof config, MAGIC, 21801, 0};
        CHECK(ncclCommInitRankConfig(&comm, ranks, id, rank, &config) == ncclInProgress);
    }
    void leave() {
        begun(ncclCommFinalize(comm));
        DO(ncclCommDestroy(comm));
    }
    template <class T> CUdeviceptr memory(const std::vector<T> &values) {
        CUdeviceptr at;
        DO(cuMemAlloc_v2(&at, values.size() * sizeof(T)));
        DO(cuMemcpyHtoD_v2(at, values.data(), values.size() * sizeof(T)));
        return at;
    }
    template <class T> std::vector<T> read(CUdeviceptr at, size_t count) {
        DO(cuStreamSynchronize(stream));
        std::vector<T> values(count);
        DO(cuMemcpyDtoH_v2(values.data(), at, count * sizeof(T)));
        return values;
    }
};

static ncclUniqueId draw_id() {
    ncclUniqueId id;
    DO(ncclGetUniqueId(&id));
    return id;
}

// Runs ranks on threads, each on the device that is said.
static void ranks(int count, const std::function<void(Rank &)> &body, bool joins = true) {
    ncclUniqueId id = draw_id();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; rank++) {
        threads.emplace_back([&, rank] {
            Rank mine{rank, count};
            if (joins) DO(mine.join(id, rank));
            body(mine);
        });
    }
    for (auto &thread : threads) thread.join();
}

static void collectives() {
    ranks(4, [](Rank &r) {
        std::vector<float> mine(10, float(r.rank + 1));
        CUdeviceptr x = r.memory(mine);
        for (int i = 0; i < 5; i++) r.begun(ncclAllReduce(x, x, 10, Float32, i ? Avg : Sum, r.comm, r.stream));
        CHECK(r.read<float>(x, 10)[9] == 10);
        std::vector<int64_t> many(8, r.rank - 2);
        CUdeviceptr y = r.memory(many);
        r.begun(ncclReduceScatter(y, y + 16 * r.rank, 2, Int64, Min, r.comm, r.stream));
        CHECK(r.read<int64_t>(y, 8)[2 * r.rank] == -2);
        CUdeviceptr z = r.memory(std::vector<uint8_t>{uint8_t(r.rank), 9, 9, 9});
        r.begun(ncclAllGather(z, z, 1, Uint8, r.comm, r.stream));
        CHECK((r.read<uint8_t>(z, 4) == std::vector<uint8_t>{0, 1, 2, 3}));
        r.begun(ncclBroadcast(z, z, 4, Uint8, 2, r.comm, r.stream));
        r.leave();
    });
}

// Calls that begin together, and a communicator of some ranks, whose order is the other way round.
static void groups() {
    ranks(4, [](Rank &r) {
        CUdeviceptr x = r.memory(std::vector<int>(4, r.rank)), y = r.memory(std::vector<int>(4, 9));
        DO(ncclGroupStart());
        DO(ncclSend(x, 4, Int32, (r.rank + 1) % 4, r.comm, r.stream));
        DO(ncclRecv(y, 4, Int32, (r.rank + 3) % 4, r.comm, r.stream));
        r.begun(ncclGroupEnd());
        CHECK(r.read<int>(y, 4)[3] == (r.rank + 3) % 4);
        r.begun(ncclReduce(x, y, 4, Int32, Sum, 1, r.comm, r.stream));
        CHECK(r.read<int>(y, 4)[0] == (r.rank == 1 ? 6 : (r.rank + 3) % 4));
        Rank half{-1, -1};
        half.stream = r.stream;
        r.begun(ncclCommSplit(r.comm, r.rank < 2 ? 0 : -1, -r.rank, &half.comm, nullptr));
        CHECK((half.comm != nullptr) == (r.rank < 2));
        if (half.comm) {
            half.begun(ncclReduce(x, y, 4, Int32, Max, 0, half.comm, r.stream));
            if (r.rank == 1) CHECK(r.read<int>(y, 4)[0] == 1);
            half.leave();
        }
        r.leave();
    });
}

// Calls on a communicator that is not ready, and what is wrong in other ways that NCCL says.
static void refusals() {
    ranks(2, [](Rank &r) {
        CUdeviceptr x = r.memory(std::vector<int>(4, 1));
        CHECK(ncclAllReduce(x, x, 4, 77, Sum, r.comm, r.stream) == ncclInvalidArgument);
        CHECK(ncclBroadcast(x, x, 4, Int32, 2, r.comm, r.stream) == ncclInvalidArgument);
        CHECK(ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream) == ncclInProgress);
        int again = ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream);
        if (again == ncclInvalidArgument) {
            CHECK(r.settle() == ncclInvalidArgument);
            CHECK(ncclCommDestroy(r.comm) == ncclInvalidArgument);
        }
        DO(ncclCommAbort(r.comm));
    });
}

// A rank is not destroyed before all others leave, if it is set so.
static void proxies() {
    hexagramFakeNcclSet("proxy=1");
    std::atomic<bool> has_left = false;
    ranks(2, [&](Rank &r) {
        if (r.rank == 1) usleep(50000), has_left = true;
        r.leave();
        CHECK(has_left);
    });
    ranks(2, [&](Rank &r) {
        if (r.rank == 0) r.leave();
        if (r.rank == 1) DO(ncclCommAbort(r.comm));
    });
}

// Aborting ends what waits: for a rank that does not come, and for one that does not call.
static void aborts() {
    ncclUniqueId id = draw_id();
    Rank alone{0, 2};
    void *context;
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    alone.begin(id);
    usleep(50000);
    CHECK(alone.state() == ncclInProgress);
    DO(ncclCommAbort(alone.comm));
    ranks(2, [](Rank &r) {
        CUdeviceptr x = r.memory(std::vector<int>(4, 1));
        r.begun(ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream));
        if (r.rank == 0) r.begun(ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream));
        usleep(30000);
        if (r.rank == 0) CHECK(cuStreamQuery(r.stream) == NOT_READY);
        DO(ncclCommAbort(r.comm));
        DO(cuStreamSynchronize(r.stream));
    });
}

static void errors() {
    hexagramFakeNcclSet("async_error=2:2");
    ranks(2, [](Rank &r) {
        CUdeviceptr x = r.memory(std::vector<int>(4, 1));
        r.begun(ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream));
        DO(cuStreamSynchronize(r.stream));
        ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream);
        // One of them has the error, the other waits for it.
        for (int look = 0; look < 500; look++) usleep(100), r.state(), cuStreamQuery(r.stream);
        CHECK(r.state() == ncclSystemError || r.state() == ncclSuccess);
        CHECK(cuStreamQuery(r.stream) == NOT_READY);
        DO(ncclCommAbort(r.comm));
        DO(cuStreamSynchronize(r.stream));
    });
    hexagramFakeNcclSet("init=3");
    Rank r{0, 1};
    CHECK(r.join(draw_id(), 0) == ncclInternalError);
    DO(ncclCommAbort(r.comm));
}

static Rank other_rank(const char *text) {
    ncclUniqueId id;
    for (int i = 0; i < 128; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        id.internal[i] = static_cast<char>(byte);
    }
    Rank r{1, 2};
    DO(r.join(id, 1));
    return r;
}

// Starts another process as rank 1 of 2.
static pid_t start_other(ncclUniqueId id, const char *what) {
    std::string text;
    for (unsigned char byte : id.internal) {
        char two[3];
        snprintf(two, 3, "%02x", byte);
        text += two;
    }
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "selftest", what, text.c_str(), nullptr);
        _exit(9);
    }
    return child;
}

static void processes() {
    ncclUniqueId id = draw_id();
    pid_t child = start_other(id, "other");
    Rank r{0, 2};
    DO(r.join(id, 0));
    CUdeviceptr x = r.memory(std::vector<int>(300000, 1));
    for (int i = 0; i < 5; i++) r.begun(ncclAllReduce(x, x, 300000, Int32, Sum, r.comm, r.stream));
    CHECK(r.read<int>(x, 300000)[299999] == 32);
    r.leave();
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void other(const char *text) {
    Rank r = other_rank(text);
    CUdeviceptr x = r.memory(std::vector<int>(300000, 1));
    for (int i = 0; i < 5; i++) r.begun(ncclAllReduce(x, x, 300000, Int32, Sum, r.comm, r.stream));
    CHECK(r.read<int>(x, 300000)[0] == 32);
    r.leave();
}

// Goes on where a rank ends in the middle, until the communicator is aborted.
static void deaths() {
    ncclUniqueId id = draw_id();
    pid_t child = start_other(id, "dying");
    Rank r{0, 2};
    DO(r.join(id, 0));
    CUdeviceptr x = r.memory(std::vector<int>(4, 1));
    r.begun(ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream));
    ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    // On one host, nobody notices.
    for (int look = 0; look < 2000; look++) usleep(100), cuStreamQuery(r.stream);
    CHECK(r.state() == ncclSuccess);
    CHECK(cuStreamQuery(r.stream) == NOT_READY);
    DO(ncclCommAbort(r.comm));
    DO(cuStreamSynchronize(r.stream));
}

static void dying(const char *text) {
    Rank r = other_rank(text);
    CUdeviceptr x = r.memory(std::vector<int>(4, 1));
    r.begun(ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream));
    DO(cuStreamSynchronize(r.stream));
    raise(SIGKILL);
}

// What ends the program with a line.
static void wrong(const std::string &what) {
    if (what == "bare") {
        Rank r{0, 1};
        r.begin(draw_id());
    }
    ranks(2, [&](Rank &r) {
        CUdeviceptr x = r.memory(std::vector<int>(8, 1));
        static std::vector<int> host(8);
        static std::atomic<CUdeviceptr> foreign = 0;
        if (r.rank == 1) foreign = x;
        while (!foreign) usleep(100);
        if (what == "counts") ncclAllReduce(x, x, 4 + r.rank, Int32, Sum, r.comm, r.stream);
        if (what == "order") {
            if (r.rank == 0) r.begun(ncclAllReduce(x, x, 4, Int32, Sum, r.comm, r.stream));
            if (r.rank == 1) r.begun(ncclBroadcast(x, x, 4, Int32, 0, r.comm, r.stream));
        }
        if (what == "host") ncclAllReduce(CUdeviceptr(host.data()), x, 8, Int32, Sum, r.comm, r.stream);
        if (what == "foreign") ncclAllReduce(foreign, x, 8, Int32, Sum, r.comm, r.stream);
        if (what == "long") ncclAllReduce(x, x, 9, Int32, Sum, r.comm, r.stream);
        if (what == "aborted") {
            DO(ncclCommAbort(r.comm));
            ncclAllReduce(x, x, 8, Int32, Sum, r.comm, r.stream);
        }
        if (what == "unbound") {
            DO(cuCtxSetCurrent(nullptr));
            ncclCommAbort(r.comm);
        }
        if (what == "within") {
            cuLaunchHostFunc(r.stream, [](void *r) { ncclAllReduce(8, 8, 8, Int32, Sum, *static_cast<ncclComm_t *>(r), nullptr); }, &r.comm);
        }
        r.settle();
        cuStreamSynchronize(r.stream);
        sleep(5);
    });
    printf("%s was not found out\n", what.c_str());
}

int main(int count, char **arguments) {
    std::string name = count > 1 ? arguments[1] : "";
    DO(cuInit(0));
    const std::pair<const char *, void (*)()> tests[] = {
        {"collectives", collectives}, {"groups", groups},       {"refusals", refusals}, {"aborts", aborts}, {"errors", errors},
        {"processes", processes},     {"deaths", deaths},       {"proxies", proxies}};
    for (auto &test : tests) {
        if (name == test.first) return test.second(), 0;
    }
    if (name == "other") return other(arguments[2]), 0;
    if (name == "dying") return dying(arguments[2]), 0;
    wrong(name);
    return 0;
}
