//! Arithmetic in either float type, for optimizers with more than one line per element.

use hexagram_logical::Element;
use hexagram_logical::device::kernels::{Float, sums};
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::Argument;
use std::fmt::Debug;
use std::ops::{AddAssign, Div, Neg, Sub};

/// Float type of parameters.
pub(crate) trait FloatExt:
    Element + Float + Debug + Sub<Output = Self> + Div<Output = Self> + Neg<Output = Self> + AddAssign + Into<f64>
{
    /// Zero.
    const ZERO: Self;

    /// Returns the nearest number of this type.
    fn of(number: f64) -> Self;

    /// Returns the square root.
    fn root(self) -> Self;

    /// Returns the sum of all squares, in double precision.
    fn squares(elements: &[Self]) -> f64;

    /// Returns the number as an argument of an entry.
    #[cfg(feature = "cuda")]
    fn argument(self) -> Argument;
}

macro_rules! real {
    ($T:ident, $squares:path, $argument:path) => {
        impl FloatExt for $T {
            const ZERO: Self = 0.0;

            #[inline]
            fn of(number: f64) -> Self {
                number as $T
            }

            #[inline]
            fn root(self) -> Self {
                self.sqrt()
            }

            fn squares(elements: &[Self]) -> f64 {
                $squares(elements)
            }

            #[cfg(feature = "cuda")]
            fn argument(self) -> Argument {
                $argument(self)
            }
        }
    };
}

real!(f32, sums::squares_f32, Argument::F32);
real!(f64, sums::squares_f64, Argument::F64);

/// Returns the Euclidean norm, summed in double precision.
pub(crate) fn norm<T: FloatExt>(elements: &[T]) -> f64 {
    T::squares(elements).sqrt()
}
