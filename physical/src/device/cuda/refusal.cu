// What was refused on one stream goes with the bytes to another one: see kernel_error.rs.
#include "device.cuh"

/// Copies a record to one that says nothing yet. `from` is a snapshot in memory of the host.
extern "C" __global__ void refusal_carry(const Refusal* from, Refusal* to) {
    if (from->launch != 0 && to->launch == 0) *to = *from;
}

ENTRY(refusal_carry)
