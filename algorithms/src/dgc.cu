// DGC's masking: the twin of dgc.rs.

#include "device.cuh"
#include "elements.cuh"

/// Clears the momentum of the elements that were sent.
extern "C" __global__ void dgc_mask(const float* unsent, float* momentum, u64 len) {
    float* const arrays[] = {momentum, (float*)unsent};
    change<1>(len, arrays, [](float(&at)[2]) { at[0] = at[1] == 0 ? 0 : at[0]; });
}

ENTRY(dgc_mask)
