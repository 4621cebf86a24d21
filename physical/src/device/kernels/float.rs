//! Rules for NaN and zeros that make a result independent of the order of operands.
//!
//! Of two NaNs, x86 keeps the payload of the first one. The default NaN is negative on x86, and positive on ARM; a
//! compiler may swap the operands of a sum. Therefore every NaN is replaced by one NaN before it is stored.

use std::ops::{Add, Mul};

/// A float whose sums, products, minima and maxima have the same bits in either order.
pub trait Float: bytemuck::Pod + PartialOrd + Add<Output = Self> + Mul<Output = Self> {
    /// The NaN of all results: positive and quiet, without a payload.
    const NAN: Self;

    /// Returns true for any NaN.
    fn is_nan(self) -> bool;

    /// Returns the number itself, and [`Float::NAN`] for any NaN.
    #[must_use]
    fn canonical(self) -> Self;

    /// Returns the minimum of IEEE 754-2019: NaN if either is, and −0 is less than +0.
    #[must_use]
    fn minimum(self, other: Self) -> Self;

    /// Returns the maximum of IEEE 754-2019: NaN if either is, and +0 is greater than −0.
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
            // Only zeros are equal with different bits; one sign bit is enough.
            let zero = $t::from_bits(self.to_bits() | other.to_bits());
            let least = if self == other { zero } else { less };
            if self.is_nan() | other.is_nan() { $t::NAN } else { least }
        }

        #[inline(always)]
        fn maximum(self, other: Self) -> Self {
            let more = if self > other { self } else { other };
            // As above; both must be negative.
            let zero = $t::from_bits(self.to_bits() & other.to_bits());
            let most = if self == other { zero } else { more };
            if self.is_nan() | other.is_nan() { $t::NAN } else { most }
        }
    })*};
}
floats!(f32, f64);
