// Tests the fake driver by itself: what it promises to tests that stand on it. `selftest` builds and runs it.
//
// One test a run: `selftest NAME`. Those that end the program with a line are told apart by the script.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

typedef unsigned long long Address;
extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize();
int cuMemAlloc_v2(Address *, size_t);
int cuMemFree_v2(Address);
int cuMemAllocAsync(Address *, size_t, void *);
int cuMemFreeAsync(Address, void *);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemcpyHtoDAsync_v2(Address, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, Address, size_t, void *);
int cuMemcpyHtoD_v2(Address, const void *, size_t);
int cuMemcpyDtoH_v2(void *, Address, size_t);
int cuMemsetD8Async(Address, unsigned char, size_t, void *);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuStreamQuery(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuStreamWaitValue32_v2(void *, Address, unsigned, unsigned);
int cuStreamWriteValue32_v2(void *, Address, unsigned, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventQuery(void *);
int cuEventSynchronize(void *);
int cuEventDestroy_v2(void *);
int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **);
struct Handle {
    char bytes[64];
};
int cuIpcGetMemHandle(Handle *, Address);
int cuIpcOpenMemHandle_v2(Address *, Handle, unsigned);
int cuIpcCloseMemHandle(Address);
int cuPointerGetAttribute(void *, int, Address);
int cuMemGetAddressRange_v2(Address *, size_t *, Address);
int cuDeviceGetAttribute(int *, int, int);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemHostUnregister(void *);
int cuMemHostGetDevicePointer_v2(Address *, void *, unsigned);
int cuStreamGetCtx(void *, void **);
int cuDeviceGetDefaultMemPool(void **, int);
int cuMemPoolTrimTo(void *, size_t);
void hexagramFakeSet(const char *);
void hexagramFakePlace(const char *);
unsigned long long hexagramFakeCount(const char *);
}

#define CHECK(what)                                                                                                    \
    if (!(what)) {                                                                                                     \
        printf("line %d: %s\n", __LINE__, #what);                                                                      \
        exit(1);                                                                                                       \
    }
#define DO(call)                                                                                                       \
    if (int code = (call)) {                                                                                           \
        printf("line %d: %s returned %d\n", __LINE__, #call, code);                                                    \
        exit(1);                                                                                                       \
    }

static const char PTX[] = R"(.version 8.0
.target sm_70
.visible .entry selftest_add(
	.param .u64 selftest_add_param_0,
	.param .u64 selftest_add_param_1,
	.param .f32 selftest_add_param_2,
	.param .u64 selftest_add_param_3
)
.visible .entry selftest_sum(
	.param .u64 a, .param .u32 b, .param .u64 c)
.visible .entry selftest_warp(
	.param .u64 a)
.visible .entry selftest_refuse(
	.param .align 8 .b8 selftest_refuse_param_0[24],
	.param .u32 selftest_refuse_param_1)
.visible .entry selftest_past_the_end(.param .u64 a, .param .u64 b)
.visible .entry selftest_part_of_a_warp(.param .u64 a)
)";

static void *context, *module;

static void begin() {
    DO(cuInit(0));
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoadData(&module, PTX));
}

static void *stream() {
    void *stream;
    DO(cuStreamCreate(&stream, 1));
    return stream;
}

static Address memory(size_t bytes) {
    Address at;
    DO(cuMemAlloc_v2(&at, bytes));
    return at;
}

template <class... P>
static int launch(const char *name, unsigned blocks, unsigned threads, void *stream, P... parameters) {
    void *function;
    if (int code = cuModuleGetFunction(&function, module, name)) return code;
    void *places[] = {&parameters..., nullptr};
    return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, places, nullptr);
}

template <class T> static std::vector<T> read(Address at, size_t count) {
    std::vector<T> values(count);
    DO(cuMemcpyDtoH_v2(values.data(), at, count * sizeof(T)));
    return values;
}

static void kernels() {
    void *s = stream();
    constexpr unsigned N = 1000;
    std::vector<float> from(N);
    for (unsigned i = 0; i < N; i++) from[i] = i;
    Address x = memory(4 * N), y = memory(4 * N);
    DO(cuMemcpyHtoDAsync_v2(x, from.data(), 4 * N, s));
    from.assign(N, -1); // Pageable memory has been read.
    DO(launch("selftest_add", 3, 96, s, x, 1000ull, 0.5f, y));
    DO(cuStreamSynchronize(s));
    std::vector<float> sums = read<float>(y, N);
    for (unsigned i = 0; i < N; i++) CHECK(sums[i] == i + 0.5f);

    std::vector<unsigned> numbers(5000);
    for (unsigned i = 0; i < 5000; i++) numbers[i] = i;
    Address n = memory(20000), total = memory(4);
    DO(cuMemcpyHtoDAsync_v2(n, numbers.data(), 20000, s));
    for (unsigned threads : {64, 256, 1024}) {
        DO(cuMemsetD8Async(total, 0, 4, s));
        DO(launch("selftest_sum", (5000 + threads - 1) / threads, threads, s, n, 5000u, total));
        DO(cuStreamSynchronize(s));
        CHECK(read<unsigned>(total, 1)[0] == 5000 * 4999 / 2);
    }
    Address lanes = memory(128);
    DO(launch("selftest_warp", 1, 32, s, lanes));
    DO(cuStreamSynchronize(s));
    std::vector<unsigned> seen = read<unsigned>(lanes, 32);
    for (unsigned i = 0; i < 32; i++) CHECK(seen[i] == (i ^ 5) + 500 + 10000 + 100000 * (i ? i - 1 : 0));

    struct {
        Address record;
        unsigned long long launch, before;
    } refusing = {memory(24), 9, 0};
    unsigned long long none[3] = {0, ~0ull, 0};
    DO(cuMemcpyHtoD_v2(refusing.record, none, 24));
    DO(launch("selftest_refuse", 4, 64, s, refusing, 200u));
    DO(cuStreamSynchronize(s));
    CHECK(read<unsigned long long>(refusing.record, 2)[1] == (70ull << 32 | 7));
    void *function;
    CHECK(cuModuleGetFunction(&function, module, "selftest_none") == 500);
}

// True if the schedule is other than the program's order.
static bool is_late() {
    const char *text = getenv("HEXAGRAM_FAKE_CUDA");
    return text == nullptr || strstr(text, "seed=0") == nullptr;
}

// Copies on one stream what another writes, and returns how many values came too early.
static unsigned copied_too_early(bool waits) {
    void *first = stream(), *second = stream(), *event;
    DO(cuEventCreate(&event, 2));
    Address x = memory(4000), y = memory(4000);
    DO(cuMemsetD8Async(x, 0, 4000, first));
    DO(launch("selftest_add", 1, 32, first, x, 1000ull, 1.0f, y));
    DO(cuEventRecord(event, first));
    if (waits) DO(cuStreamWaitEvent(second, event, 0));
    void *pinned;
    DO(cuMemHostAlloc(&pinned, 4000, 0));
    DO(cuMemcpyDtoHAsync_v2(pinned, y, 4000, second));
    DO(cuStreamSynchronize(second));
    unsigned wrong = 0;
    for (int i = 0; i < 1000; i++) wrong += static_cast<float *>(pinned)[i] != 1.0f;
    DO(cuCtxSynchronize());
    DO(cuMemFreeHost(pinned));
    DO(cuMemFree_v2(x));
    DO(cuMemFree_v2(y));
    DO(cuEventDestroy_v2(event));
    DO(cuStreamDestroy_v2(first));
    DO(cuStreamDestroy_v2(second));
    return wrong;
}

static void order() {
    hexagramFakeSet("delay=60000000");
    for (int i = 0; i < 50; i++) {
        CHECK(copied_too_early(true) == 0);
        if (is_late()) CHECK(copied_too_early(false) == 1000);
    }
    if (!is_late()) return;
    std::string skip = "skip_wait=" + std::to_string(hexagramFakeCount("waits"));
    hexagramFakeSet(skip.c_str());
    CHECK(copied_too_early(true) == 1000);
    CHECK(copied_too_early(true) == 0);
    hexagramFakeSet("skip_place=here");
    hexagramFakePlace("there");
    CHECK(copied_too_early(true) == 0);
    hexagramFakePlace("here");
    CHECK(copied_too_early(true) == 1000);
}

// Several threads, each with streams, events and functions of its own.
static void threads() {
    std::vector<std::thread> all;
    std::atomic<unsigned> rung = 0;
    for (int t = 0; t < 4; t++) {
        all.emplace_back([&rung] {
            DO(cuCtxSetCurrent(context));
            for (int i = 0; i < 50; i++) {
                CHECK(copied_too_early(true) == 0);
                void *s = stream();
                std::atomic<bool> mine = false;
                std::pair<std::atomic<bool> *, std::atomic<unsigned> *> both = {&mine, &rung};
                Address value = memory(4);
                DO(cuMemsetD8Async(value, 0, 4, s));
                DO(cuStreamWriteValue32_v2(s, value, 5, 0));
                DO(cuStreamWaitValue32_v2(s, value, 5, 0));
                DO(cuLaunchHostFunc(
                    s,
                    [](void *data) {
                        auto both = *static_cast<std::pair<std::atomic<bool> *, std::atomic<unsigned> *> *>(data);
                        if (cuCtxSynchronize() != 800) return;
                        (*both.second)++;
                        *both.first = true;
                    },
                    &both));
                while (!mine) usleep(50);
                DO(cuMemFree_v2(value));
                DO(cuStreamDestroy_v2(s));
            }
        });
    }
    for (auto &thread : all) thread.join();
    CHECK(rung == 200);
}

static void pools() {
    void *s = stream();
    for (int i = 0; i < 20; i++) {
        Address x;
        DO(cuMemAllocAsync(&x, 4000, s));
        DO(cuMemsetD8Async(x, 0, 4000, s));
        DO(launch("selftest_add", 1, 32, s, x, 1000ull, 1.0f, x));
        DO(cuMemFreeAsync(x, s));
    }
    DO(cuStreamSynchronize(s));
    CHECK(hexagramFakeCount("live") == 0);
    hexagramFakeSet("memory=1M");
    Address x;
    CHECK(cuMemAllocAsync(&x, 2 << 20, s) == 2);
    // A pool keeps what is freed, but for itself, until it is trimmed.
    DO(cuMemAllocAsync(&x, 700 << 10, s));
    DO(cuMemFreeAsync(x, s));
    DO(cuStreamSynchronize(s));
    CHECK(cuMemAlloc_v2(&x, 700 << 10) == 2);
    DO(cuMemAllocAsync(&x, 700 << 10, s));
    DO(cuMemFreeAsync(x, s));
    DO(cuStreamSynchronize(s));
    void *pool;
    DO(cuDeviceGetDefaultMemPool(&pool, 0));
    DO(cuMemPoolTrimTo(pool, 0));
    DO(cuMemAlloc_v2(&x, 700 << 10));
}

// Memory that is not pinned is read and written within the call; pinned memory when the stream comes to it.
static void pageable() {
    void *s = stream();
    Address x = memory(4000);
    std::vector<unsigned> numbers(1000, 1);
    DO(cuMemcpyHtoDAsync_v2(x, numbers.data(), 4000, s));
    numbers.assign(1000, 2);
    DO(cuMemcpyDtoHAsync_v2(numbers.data(), x, 4000, s));
    CHECK(numbers[999] == 1);
    void *at;
    DO(cuMemHostAlloc(&at, 4000, 0));
    unsigned *pinned = static_cast<unsigned *>(at);
    pinned[999] = 3;
    Address gate = memory(4);
    DO(cuMemsetD8Async(gate, 0, 4, s));
    DO(cuStreamWaitValue32_v2(s, gate, 1, 0));
    DO(cuMemcpyHtoDAsync_v2(x, pinned, 4000, s));
    pinned[999] = 4;
    void *other = stream();
    DO(cuStreamWriteValue32_v2(other, gate, 1, 0));
    DO(cuStreamSynchronize(s));
    CHECK(read<unsigned>(x, 1000)[999] == 4);
    DO(cuMemFreeHost(at));
}

// A stream that waits for what the host writes into pinned memory.
static void values() {
    void *s = stream(), *at;
    DO(cuMemHostAlloc(&at, 4, 0));
    std::atomic<unsigned> *word = new (at) std::atomic<unsigned>(0);
    DO(cuStreamWaitValue32_v2(s, reinterpret_cast<Address>(at), 2, 0));
    DO(cuStreamWriteValue32_v2(s, reinterpret_cast<Address>(at), 7, 0));
    for (int i = 0; i < 10; i++) CHECK(cuStreamQuery(s) == 600);
    *word = 2;
    while (*word != 7) usleep(50);
    DO(cuStreamSynchronize(s));
    DO(cuMemFreeHost(at));
}

// Who is the last to let go of a context waits for its work, while another thread retains it.
static void retained() {
    void *s = stream(), *at, *again;
    DO(cuMemHostAlloc(&at, 4, 0));
    std::atomic<unsigned> *word = new (at) std::atomic<unsigned>(0);
    DO(cuStreamWaitValue32_v2(s, reinterpret_cast<Address>(at), 2, 0));
    std::thread last([] { DO(cuDevicePrimaryCtxRelease_v2(0)); });
    usleep(50000);
    DO(cuDevicePrimaryCtxRetain(&again, 0));
    CHECK(again == context);
    *word = 2;
    last.join();
    DO(cuCtxSynchronize());
    CHECK(copied_too_early(true) == 0);
}

// A launch that never ends stops its stream, and no other.
static void hang() {
    void *s = stream(), *other = stream();
    Address x = memory(4000);
    hexagramFakeSet("hang=0");
    DO(launch("selftest_add", 1, 32, s, x, 1000ull, 1.0f, x));
    DO(launch("selftest_add", 1, 32, other, x, 1000ull, 1.0f, x));
    DO(cuStreamSynchronize(other));
    for (int i = 0; i < 100; i++) CHECK(cuStreamQuery(s) == 600);
}

static void faults() {
    void *s = stream(), *event;
    Address x = memory(4000);
    DO(cuEventCreate(&event, 2));
    hexagramFakeSet("fault=1:700");
    DO(launch("selftest_add", 1, 32, s, x, 1000ull, 1.0f, x));
    DO(launch("selftest_add", 1, 32, s, x, 1000ull, 1.0f, x));
    // The launch may have been run, and have failed, by now.
    int recorded = cuEventRecord(event, s);
    CHECK(recorded == 0 || recorded == 700);
    CHECK(cuStreamSynchronize(s) == 700);
    CHECK(cuEventQuery(event) == 700);
    CHECK(cuMemAlloc_v2(&x, 4) == 700);
    CHECK(cuStreamCreate(&s, 1) == 700);
    DO(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(cuCtxSynchronize() == 709);
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    CHECK(launch("selftest_warp", 1, 32, nullptr, x) == 400);
    DO(cuModuleLoadData(&module, PTX));
    CHECK(copied_too_early(true) == 0);
}

static void lent() {
    Address x = memory(4000);
    std::vector<unsigned> numbers(1000, 7);
    DO(cuMemcpyHtoD_v2(x, numbers.data(), 4000));
    Handle handle;
    DO(cuIpcGetMemHandle(&handle, x));
    Address own;
    CHECK(cuIpcOpenMemHandle_v2(&own, handle, 1) == 201);
    std::string text;
    for (unsigned char byte : handle.bytes) {
        char two[3];
        snprintf(two, 3, "%02x", byte);
        text += two;
    }
    fflush(stdout);
    CHECK(system(("/proc/" + std::to_string(getpid()) + "/exe borrow " + text).c_str()) == 0);
    CHECK(read<unsigned>(x, 1000)[999] == 8);
}

template <class T> static T attribute(int number, Address at) {
    T value = {};
    DO(cuPointerGetAttribute(&value, number, at));
    return value;
}

// What an address is said to be: the context, 1 of the host or 2 of a device, and whether it can be lent.
static void pointers() {
    void *s = stream(), *of_stream, *pinned;
    DO(cuStreamGetCtx(s, &of_stream));
    CHECK(of_stream == context);
    Address x = memory(4000), y, base;
    DO(cuMemAllocAsync(&y, 4000, s));
    DO(cuMemHostAlloc(&pinned, 4000, 0));
    Address of_host = reinterpret_cast<Address>(pinned);
    CHECK(attribute<void *>(1, x + 100) == context && attribute<void *>(1, y) == nullptr);
    CHECK(attribute<unsigned>(2, x + 100) == 2 && attribute<unsigned>(2, of_host) == 1);
    CHECK(attribute<bool>(10, x) && !attribute<bool>(10, y) && !attribute<bool>(10, of_host));
    CHECK(attribute<int>(9, y) == 0 && !attribute<bool>(8, y));
    int number;
    CHECK(cuPointerGetAttribute(&number, 2, reinterpret_cast<Address>(&number)) == 1);
    size_t bytes;
    DO(cuMemGetAddressRange_v2(&base, &bytes, x + 100));
    CHECK(base == x && bytes == 4000);
    // The program's own memory, once it is registered.
    std::vector<unsigned> own(1000, 5);
    DO(cuMemHostRegister_v2(own.data(), 4000, 3));
    CHECK(cuMemHostRegister_v2(own.data(), 4000, 3) == 712);
    DO(cuMemHostGetDevicePointer_v2(&base, own.data(), 0));
    DO(cuStreamWriteValue32_v2(s, base, 6, 0));
    DO(cuStreamSynchronize(s));
    CHECK(own[0] == 6 && own[1] == 5);
    DO(cuMemHostUnregister(own.data()));
    CHECK(cuMemHostUnregister(own.data()) == 713);
    hexagramFakeSet("pools=0");
    DO(cuDeviceGetAttribute(&number, 115, 0));
    CHECK(number == 0);
}

static void borrow(const char *text) {
    Handle handle;
    for (int i = 0; i < 64; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        handle.bytes[i] = static_cast<char>(byte);
    }
    Address x;
    DO(cuIpcOpenMemHandle_v2(&x, handle, 1));
    std::vector<unsigned> numbers = read<unsigned>(x, 1000);
    CHECK(numbers[0] == 7);
    numbers[999] = 8;
    DO(cuMemcpyHtoD_v2(x, numbers.data(), 4000));
    DO(cuIpcCloseMemHandle(x));
}

// CUDA C++ that is compiled while the program runs.
static void source() {
    void *library = dlopen("libnvrtc.so.12", RTLD_NOW);
    CHECK(library);
    auto create = reinterpret_cast<int (*)(void **, const char *, const char *, int, const char *const *,
                                           const char *const *)>(dlsym(library, "nvrtcCreateProgram"));
    auto compile = reinterpret_cast<int (*)(void *, int, const char *const *)>(dlsym(library, "nvrtcCompileProgram"));
    auto text = reinterpret_cast<int (*)(void *, char *)>(dlsym(library, "nvrtcGetPTX"));
    const char *header = "#define TWICE 2\n", *name = "twice.cuh", *option = "-fmad=false";
    const char *good = "#include \"twice.cuh\"\nextern \"C\" __global__ void twice(float* x) { x[threadIdx.x] *= TWICE; }";
    void *program;
    DO(create(&program, "extern \"C\" __global__ void bad(float* x) { y }", "bad.cu", 1, &header, &name));
    CHECK(compile(program, 1, &option) == 6);
    DO(create(&program, good, "good.cu", 1, &header, &name));
    CHECK(compile(program, 0, nullptr) == 5);
    DO(compile(program, 1, &option));
    char image[1000];
    DO(text(program, image));
    DO(cuModuleLoadData(&module, image));
    void *s = stream();
    Address x = memory(400);
    std::vector<float> ones(100, 1);
    DO(cuMemcpyHtoD_v2(x, ones.data(), 400));
    DO(launch("twice", 1, 100, s, x));
    DO(cuStreamSynchronize(s));
    CHECK(read<float>(x, 100)[99] == 2);
}

// What ends the program with a line.
static void wrong(const std::string &what) {
    void *s = stream();
    Address x = memory(100);
    if (what == "touch") printf("%d\n", *reinterpret_cast<volatile int *>(x));
    if (what == "outside") launch("selftest_past_the_end", 1, 1, s, x, 1000000ull);
    if (what == "slack") launch("selftest_past_the_end", 1, 1, s, x, 25ull);
    if (what == "stranger") launch("selftest_past_the_end", 1, 1, s, 0x123456789000ull, 0ull);
    if (what == "freed" || what == "slack") {
        if (what == "slack") DO(cuStreamSynchronize(s));
        DO(cuMemFree_v2(x));
        if (what == "freed") launch("selftest_past_the_end", 1, 1, s, x, 0ull);
    }
    if (what == "part") launch("selftest_part_of_a_warp", 1, 32, s, memory(128));
    if (what == "early") {
        // On another stream than the one in whose order it is allocated.
        DO(cuMemAllocAsync(&x, 100, stream()));
        launch("selftest_past_the_end", 1, 1, s, x, 0ull);
    }
    if (what == "long") cuMemsetD8Async(x, 0, 101, s);
    if (what == "nameless") {
        hexagramFakePlace("here");
        hexagramFakePlace(nullptr);
        cuStreamWaitValue32_v2(s, x, 0, 0);
    }
    cuStreamSynchronize(s);
    printf("%s was not found out\n", what.c_str());
}

int main(int count, char **arguments) {
    std::string name = count > 1 ? arguments[1] : "";
    begin();
    const std::pair<const char *, void (*)()> tests[] = {
        {"kernels", kernels},   {"order", order},   {"threads", threads}, {"pools", pools}, {"pageable", pageable},
        {"values", values},     {"retained", retained}, {"hang", hang},     {"faults", faults},   {"lent", lent},
        {"source", source},   {"pointers", pointers}};
    for (auto &test : tests) {
        if (name == test.first) return test.second(), 0;
    }
    if (name == "borrow") return borrow(arguments[2]), 0;
    wrong(name);
    return 0;
}
