//! Element types and reductions: the vocabulary of everything that moves or adds numbers.

use super::boolean::Bool;
use crate::error::{Error, Result};
use half::{bf16, f16};
use std::fmt;

/// Type of the elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are sufficient")]
pub enum DType {
    U8 = 0,
    I32 = 1,
    I64 = 2,
    F16 = 3,
    BF16 = 4,
    F32 = 5,
    F64 = 6,
    I8 = 7,
    I16 = 8,
    /// One byte; see [`Bool`].
    Bool = 9,
}

impl DType {
    /// Every element type, for matrices of tests and tables.
    pub const ALL: [DType; 10] = [
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::Bool,
    ];

    /// Returns the number of bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 | DType::I8 | DType::Bool => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Returns true for a floating-point type, which [`ReduceOp::Mean`] asks for.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Returns true if sums need care: 16-bit floats overflow and lose small terms, so means are divided before
    /// summing.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Returns the type whose sums and products have the same bits, and kernels on a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn unsigned(self) -> Self {
        if self == DType::I8 { DType::U8 } else { self }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as u8 == code)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Bool => "bool",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a buffer can hold.
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq + 'static {
    /// Element type at run time.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
elements! {
    u8 => U8, i8 => I8, i16 => I16, i32 => I32, i64 => I64, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
    Bool => Bool,
}

/// Reduction: the rule that combines the contributions of several ranks.
///
/// Integer sums and products wrap. Of booleans, sum and maximum are the logical or, product and minimum the logical
/// and, and results are 0 or 1.
///
/// For floats, each combination of two is the same in either order, to the last bit. Minimum and maximum are those of
/// IEEE 754-2019: NaN if either contribution is, and −0 is less than +0. Every NaN in a result is the positive quiet
/// NaN without a payload (`f32::NAN`). The sum, product, minimum and maximum of a single rank are its contribution
/// unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum of the contributions.
    Sum = 0,
    /// Sum divided by the number of ranks; floats only. In 16 bits each contribution is divided before summing.
    Mean = 1,
    /// Least contribution.
    Min = 2,
    /// Greatest contribution.
    Max = 3,
    /// Product of the contributions.
    Product = 4,
    /// Bitwise and; integers and booleans only.
    BitAnd = 5,
    /// Bitwise or; integers and booleans only.
    BitOr = 6,
    /// Bitwise exclusive or; integers and booleans only.
    BitXor = 7,
}

impl ReduceOp {
    /// Every reduction, for matrices of tests and tables.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Mean,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Product,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
    ];

    /// Returns true for the reductions of single bits, which floats do not have.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor)
    }

    /// Fails unless elements of a type have this reduction.
    ///
    /// # Errors
    /// [`Error::Usage`] for the mean of integers and booleans, and for the bitwise reductions of floats.
    #[inline]
    pub fn check(self, dtype: DType) -> Result<()> {
        let remedy = match dtype.is_float() {
            true if self.is_bitwise() => "use min, max or sum, or an integer type",
            false if self == ReduceOp::Mean => "use a sum, or a float type",
            _ => return Ok(()),
        };
        Err(Error::usage(format!("{self} is undefined for {dtype}"), remedy))
    }

    /// Returns the reduction that does the same to elements of a type: those of booleans are all bitwise.
    pub const fn of(self, dtype: DType) -> Self {
        match (dtype, self) {
            (DType::Bool, ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Max) => ReduceOp::BitOr,
            (DType::Bool, ReduceOp::Product | ReduceOp::Min) => ReduceOp::BitAnd,
            _ => self,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == code)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Mean => "mean",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
            ReduceOp::BitAnd => "band",
            ReduceOp::BitOr => "bor",
            ReduceOp::BitXor => "bxor",
        })
    }
}
