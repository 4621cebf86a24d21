// Devices and contexts: how many there are, what they are called and can do, and which one is current.
//
// A context that nobody retains is destroyed with its streams and its memory, as the driver does it.
#include "context.h"
#include "../fake.h"
#include <cstdio>
#include <cstring>
#include <cstdlib>
#include <unistd.h>
#include <vector>

namespace fake {
thread_local bool is_in_host_function;
thread_local unsigned capture_mode;
static thread_local Context *current;
static thread_local std::vector<Context *> *stack;
static std::atomic<bool> is_initialized;
static std::atomic<bool> is_over;

static Context *contexts() {
    static Context *contexts = new Context[64];
    return contexts;
}

// Calls that wait for work while they hold up the others.
static std::atomic<unsigned> synchronising;

// Waits until the calls are over that hold up this one.
static void be_held_up() {
    if (synchronising == 0) return;
    __atomic_fetch_add(&counts.held_up, 1, __ATOMIC_RELAXED);
    while (synchronising != 0) usleep(200);
}

CUresult synchronise(Context *context) {
    if (!settings.synchronises) return SUCCESS;
    synchronising++;
    Lock lock(mutex);
    CUresult error = finish(lock, context);
    synchronising--;
    return error;
}

CUresult enter(Context **context) {
    if (is_in_host_function) return NOT_PERMITTED;
    be_held_up();
    if (is_over) die("a call after the end of the process");
    if (!is_initialized) return NOT_INITIALIZED;
    if (current == nullptr) return INVALID_CONTEXT;
    *context = current;
    return current->error;
}

// What the driver does when the process ends. Whoever still calls it does so within some time.
static void end() {
    if (!settings.end) return;
    is_over = true;
    usleep(200000);
}

static bool is_known(CUdevice device) { return device >= 0 && uint64_t(device) < settings.devices; }
} // namespace fake

using namespace fake;

#define INITIALIZED                                                                                                    \
    if (!is_initialized) return NOT_INITIALIZED
#define DEVICE(device)                                                                                                 \
    INITIALIZED;                                                                                                       \
    if (!is_known(device)) return INVALID_DEVICE

API cuInit(unsigned) {
    if (settings.init) return CUresult(settings.init);
    if (settings.devices == 0) return NO_DEVICE;
    if (!is_initialized.exchange(true)) atexit(end);
    return SUCCESS;
}

API cuDriverGetVersion(int *version) {
    *version = int(settings.version);
    return SUCCESS;
}

API cuDeviceGetCount(int *count) {
    INITIALIZED;
    *count = int(settings.devices);
    return SUCCESS;
}

API cuDeviceGet(CUdevice *device, int number) {
    DEVICE(number);
    *device = number;
    return SUCCESS;
}

API cuDeviceGetName(char *name, int bytes, CUdevice device) {
    DEVICE(device);
    snprintf(name, bytes, "Fake CUDA device");
    return SUCCESS;
}

// The same for every process of the host.
API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    DEVICE(device);
    memcpy(uuid->bytes, "fake CUDA device", 16);
    uuid->bytes[15] = static_cast<unsigned char>(device);
    return SUCCESS;
}
API cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

API cuDeviceGetPCIBusId(char *to, int bytes, CUdevice device) {
    DEVICE(device);
    snprintf(to, bytes, "0000:%02X:00.0", device + 1);
    return SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    DEVICE(device);
    *bytes = settings.memory;
    return SUCCESS;
}

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    DEVICE(device);
    static const struct {
        int attribute, value;
    } known[] = {
        {1, 1024},  // threads of a block
        {2, 1024},  // and of its first dimension, and so on
        {3, 1024},
        {4, 64},
        {5, INT32_MAX},
        {6, 65535},
        {7, 65535},
        {8, 49152}, // bytes of shared memory
        {10, 32},   // lanes of a warp
        {12, 65536},
        {13, 1000000},
        {16, 4},    // multiprocessors
        {19, 1},    // host memory can be mapped
        {31, 1},
        {36, 1000000},
        {37, 4096},
        {38, 1 << 20},
        {39, 2048}, // threads of a multiprocessor
        {40, 2},
        {41, 1},    // one address space with the host
        {75, 7},    // compute capability
        {76, 0},
        {93, 1},    // waits for and writes of 64 bits
        {99, 1},    // host memory can be registered
        {122, 1},
    };
    if (attribute < 1 || attribute > 200) return INVALID_VALUE;
    *value = attribute == 33 ? (settings.slices ? 1 : device + 1) : 0;
    // Memory pools.
    if (attribute == 115) *value = settings.pools != 0;
    for (auto &one : known) {
        if (one.attribute == attribute) *value = one.value;
    }
    return SUCCESS;
}

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    DEVICE(device);
    DEVICE(peer);
    *can = device != peer;
    return SUCCESS;
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned) {
    ENTER(context);
    Lock lock(mutex);
    if (peer == nullptr || peer == context) return INVALID_VALUE;
    return context->peers.insert(peer).second ? SUCCESS : PEER_ACCESS_ALREADY_ENABLED;
}

API cuDevicePrimaryCtxRetain(CUcontext *to, CUdevice device) {
    DEVICE(device);
    Lock lock(mutex);
    Context *context = contexts() + device;
    if (context->retained++ == 0) {
        context->device = device;
        context->error = SUCCESS;
        context->legacy = std::make_shared<Stream>(Stream{context, false});
    }
    *to = context;
    return context->error;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    DEVICE(device);
    Context *context = contexts() + device;
    Lock lock(mutex);
    if (context->retained == 0) return INVALID_CONTEXT;
    if (context->retained == 1 && context->error == SUCCESS) finish(lock, context);
    // Others may have retained it meanwhile.
    if (context->retained == 1) {
        break_context(context, CONTEXT_IS_DESTROYED);
        context->error = CONTEXT_IS_DESTROYED;
        forget_streams(context);
        forget_modules(context);
        give_back_all(context);
        context->peers.clear();
        context->kept = 0;
    }
    context->retained--;
    return SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
    DEVICE(device);
    Lock lock(mutex);
    *flags = 0;
    *is_active = contexts()[device].retained > 0;
    return SUCCESS;
}

API cuCtxSetCurrent(CUcontext context) {
    INITIALIZED;
    current = context;
    return SUCCESS;
}

API cuCtxGetCurrent(CUcontext *context) {
    INITIALIZED;
    *context = current;
    return SUCCESS;
}

API cuCtxPushCurrent_v2(CUcontext context) {
    INITIALIZED;
    if (stack == nullptr) stack = new std::vector<Context *>();
    stack->push_back(current);
    current = context;
    return SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext *context) {
    INITIALIZED;
    if (stack == nullptr || stack->empty()) return INVALID_CONTEXT;
    if (context) *context = current;
    current = stack->back();
    stack->pop_back();
    return SUCCESS;
}

API cuCtxGetDevice(CUdevice *device) {
    ENTER(context);
    *device = context->device;
    return SUCCESS;
}

API cuCtxGetApiVersion(CUcontext, unsigned *version) {
    *version = 3020;
    return SUCCESS;
}

API cuCtxSetFlags(unsigned) { return SUCCESS; }

API cuThreadExchangeStreamCaptureMode(unsigned *mode) {
    INITIALIZED;
    if (mode == nullptr || *mode > 2) return INVALID_VALUE;
    std::swap(*mode, capture_mode);
    return SUCCESS;
}

API cuCtxSynchronize() {
    ENTER_UNSEEN(context);
    Lock lock(mutex);
    return finish(lock, context);
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(context);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}
