//! Arithmetic in either float type, for optimizers that do more than one line an element.

use crate::plugin::sum_of_squares;
use hexagram_logical::Element;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// Float type of parameters.
pub(crate) trait Real:
    Element
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + Into<f64>
{
    /// Zero.
    const ZERO: Self;

    /// Returns the number of this type that is nearest to another.
    fn of(number: f64) -> Self;

    /// Returns the square root.
    fn root(self) -> Self;
}

macro_rules! real {
    ($T:ty) => {
        impl Real for $T {
            const ZERO: Self = 0.0;

            #[inline]
            fn of(number: f64) -> Self {
                number as $T
            }

            #[inline]
            fn root(self) -> Self {
                self.sqrt()
            }
        }
    };
}

real!(f32);
real!(f64);

/// Returns the Euclidean norm, summed in double precision.
pub(crate) fn norm<T: Real>(elements: &[T]) -> f64 {
    sum_of_squares(elements).sqrt()
}
