//! Rules for NaN and zeros, by which a result depends on the operands' values alone, not on their order.
//!
//! Of two NaNs, x86 keeps the first one's payload, and its default NaN is negative, ARM's positive; a compiler may swap
//! the operands of a sum. So whatever is NaN becomes one NaN before it is stored.

use std::ops::{Add, Mul};

/// A float whose sums, products, minima and maxima are the same bits in either order.
pub trait Float: bytemuck::Pod + PartialOrd + Add<Output = Self> + Mul<Output = Self> {
    /// The NaN that every NaN result is: positive and quiet, without a payload.
    const NAN: Self;

    /// Returns true for any NaN.
    fn is_nan(self) -> bool;

    /// Returns the number itself, and [`Float::NAN`] for any NaN.
    #[must_use]
    fn canonical(self) -> Self;

    /// Returns IEEE 754-2019's minimum: NaN if one of both is, and −0 is less than +0.
    #[must_use]
    fn minimum(self, other: Self) -> Self;

    /// Returns IEEE 754-2019's maximum: NaN if one of both is, and +0 is greater than −0.
    #[must_use]
    fn maximum(self, other: Self) -> Self;
}

macro_rules! floats {
    ($($t:ident),*) => {$(impl Float for $t {
        const NAN: Self = $t::NAN;

        #[inline(always)]
        fn is_nan(self) -> bool {
            $t::is_nan(self)
        }

        #[inline(always)]
        fn canonical(self) -> Self {
            if self.is_nan() { $t::NAN } else { self }
        }

        #[inline(always)]
        fn minimum(self, other: Self) -> Self {
            let less = if self < other { self } else { other };
            // Only zeros are equal and differ in bits; one sign bit is enough.
            let zero = $t::from_bits(self.to_bits() | other.to_bits());
            let least = if self == other { zero } else { less };
            if self.is_nan() | other.is_nan() { $t::NAN } else { least }
        }

        #[inline(always)]
        fn maximum(self, other: Self) -> Self {
            let more = if self > other { self } else { other };
            // As above; both have to be negative.
            let zero = $t::from_bits(self.to_bits() & other.to_bits());
            let most = if self == other { zero } else { more };
            if self.is_nan() | other.is_nan() { $t::NAN } else { most }
        }
    })*};
}
floats!(f32, f64);
