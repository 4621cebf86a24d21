// DGC's masking: the twin of dgc.rs.

#include "device.cuh"

/// Clears the momentum of what was sent.
extern "C" __global__ void dgc_mask(const float* unsent, float* momentum, u64 len) {
    for (u64 i = first_place(); i < len; i += stride()) {
        if (unsent[i] == 0) momentum[i] = 0;
    }
}

ENTRY(dgc_mask)
