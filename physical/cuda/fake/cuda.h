// The driver's types and results as this fake uses them, with the numbers of CUDA 12. NVIDIA's headers are not needed.
#pragma once
#include <cstddef>
#include <cstdint>

#define API_OF(type) extern "C" __attribute__((visibility("default"))) type
#define API API_OF(CUresult)

enum CUresult : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    NOT_PERMITTED = 800,
    STREAM_CAPTURE_UNSUPPORTED = 900,
};

// Address in the memory of a device, which only kernels and copies may follow.
typedef uint64_t CUdeviceptr;
typedef int CUdevice;
typedef struct Context *CUcontext;
typedef struct Stream *CUstream;
typedef struct Event *CUevent;
typedef struct Module *CUmodule;
typedef struct Function *CUfunction;
typedef struct MemoryPool *CUmemoryPool;
typedef void (*CUhostFn)(void *);

struct CUuuid {
    unsigned char bytes[16];
};
struct CUmemPoolProps {
    int allocType, handleTypes, locationType, device;
    void *security;
    unsigned char reserved[64];
};
struct CUipcMemHandle {
    char reserved[64];
};
