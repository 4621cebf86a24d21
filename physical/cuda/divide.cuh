// Quotients by one number, to the bit those of a division. Include this after device.cuh for a kernel that divides many
// numbers by the same.
//
// A division takes a GPU some ten operations, and a branch that keeps one from overlapping the next. This takes four. It
// is the only place of fused operations: `physical/cuda/make-ptx` finds all others.
#pragma once

/// A number above 0 by which others are divided.
struct Divisor {
    /// A power of two that brings it to the middle of the exponents, with which all is multiplied.
    f32 power;
    f32 by;
    f32 inverse;

    __device__ explicit Divisor(f32 number) {
        power = number < 0x1p-60f ? 0x1p80f : number > 0x1p60f ? 0x1p-80f : 1.0f;
        by = number * power;
        inverse = 1.0f / by;
    }

    /// Returns a number divided by it, rounded as a division rounds if the quotient is from 2⁻¹⁶ to 2¹⁶ in size; what is
    /// smaller stays so. NaN if the number is NaN, or both are 0.
    ///
    /// The product is at most 1.5 last places off. What it is off is then computed without an error, and taken back with
    /// one that could turn the result only beside the middle of two floats. No quotient of floats is so near to one: all
    /// divisors were tried with those numerators that come nearest.
    __device__ f32 divide(f32 x) const {
        f32 number = x * power;
        f32 quotient = number * inverse;
        f32 rest = __fmaf_rn(-quotient, by, number);
        return __fmaf_rn(rest, inverse, quotient);
    }
};
