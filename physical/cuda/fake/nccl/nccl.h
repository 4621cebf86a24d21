// NCCL's types and results as this fake uses them, with its numbers. NVIDIA's headers are not needed.
#pragma once
#include "../cuda.h"

#define NCCL_OF(type) extern "C" __attribute__((visibility("default"))) type
#define NCCL NCCL_OF(ncclResult_t)

enum ncclResult_t : int {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclNumResults = 8,
};
enum ncclDataType_t : int { Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16, NUM_TYPES };
enum ncclRedOp_t : int { Sum, Prod, Max, Min, Avg, NUM_REDUCTIONS };

typedef struct Comm *ncclComm_t;
struct ncclUniqueId {
    char internal[128];
};
constexpr unsigned MAGIC = 0xcafebeef;
// The first fields, as of NCCL 2.18.
struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking;
};
