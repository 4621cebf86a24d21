//! MPI names of the element types and reductions, and our own operators where MPI guarantees less.
//!
//! MPI has no 16-bit floats, its minimum and maximum leave the treatment of NaN open, and its integer sums need not
//! wrap (Open MPI 4.1 saturates those of bytes). In these cases MPI calls the kernels with which every transport
//! reduces.

use super::library::check;
use crate::device;
use crate::error::{Error, Result};
use crate::memory::dtype::{DType, ReduceOp};
use mpi::ffi;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// MPI's type and operator for one reduction of one element type.
#[derive(Clone, Copy)]
pub(super) struct Operator {
    pub(super) dtype: ffi::MPI_Datatype,
    pub(super) op: ffi::MPI_Op,
}

/// Function that MPI calls for an operator.
type Function = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut ffi::MPI_Datatype);

/// Combines `length` elements for MPI: `to ← from ∘ to`.
unsafe extern "C" fn combine<const OP: usize, const DTYPE: usize>(
    from: *mut c_void,
    to: *mut c_void,
    length: *mut c_int,
    _: *mut ffi::MPI_Datatype,
) {
    let op = ReduceOp::ALL[OP];
    let dtype = DType::ALL[DTYPE];
    // SAFETY: MPI passes two arrays of that many elements, aligned for their type, that do not overlap.
    unsafe {
        let bytes = usize::try_from(*length).unwrap_or(0) * dtype.size();
        let from = std::slice::from_raw_parts(from.cast::<u8>(), bytes);
        device::land(op, dtype, from, std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes));
    }
}

/// Returns the functions of all element types for one reduction.
const fn row<const OP: usize>() -> [Function; DType::ALL.len()] {
    [
        combine::<OP, 0>,
        combine::<OP, 1>,
        combine::<OP, 2>,
        combine::<OP, 3>,
        combine::<OP, 4>,
        combine::<OP, 5>,
        combine::<OP, 6>,
        combine::<OP, 7>,
        combine::<OP, 8>,
        combine::<OP, 9>,
    ]
}

const FUNCTIONS: [[Function; DType::ALL.len()]; ReduceOp::ALL.len()] =
    [row::<0>(), row::<1>(), row::<2>(), row::<3>(), row::<4>(), row::<5>(), row::<6>(), row::<7>()];

/// All operators, by reduction and element type.
struct OperatorTable(Vec<Vec<Operator>>);

// SAFETY: immutable handles.
unsafe impl Send for OperatorTable {}
// SAFETY: as above.
unsafe impl Sync for OperatorTable {}

/// Returns the operator of a reduction; that of a mean adds.
pub(super) fn operator(op: ReduceOp, dtype: DType) -> Result<Operator> {
    static TABLE: OnceLock<Result<OperatorTable>> = OnceLock::new();
    let table = TABLE.get_or_init(build).as_ref().map_err(Error::clone)?;
    let row = ReduceOp::ALL.iter().position(|each| *each == op).unwrap_or(0);
    let column = DType::ALL.iter().position(|each| *each == dtype).unwrap_or(0);
    Ok(table.0[row][column])
}

/// Creates all operators.
fn build() -> Result<OperatorTable> {
    let half = half()?;
    let rows = ReduceOp::ALL.into_iter().zip(FUNCTIONS).map(|(op, functions)| {
        let row = DType::ALL.into_iter().zip(functions).map(|(dtype, function)| {
            let op = known(op, dtype).map_or_else(|| own(function), Ok)?;
            Ok(Operator { dtype: name(dtype, half), op })
        });
        row.collect::<Result<Vec<_>>>()
    });
    rows.collect::<Result<_>>().map(OperatorTable)
}

/// Returns the MPI operator if it guarantees the same as ours; some networks execute these in hardware.
fn known(op: ReduceOp, dtype: DType) -> Option<ffi::MPI_Op> {
    let is_wide_float = matches!(dtype, DType::F32 | DType::F64);
    let is_integer = !dtype.is_float() && dtype != DType::Bool;
    // SAFETY: constants of the library.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Mean if is_wide_float => Some(ffi::RSMPI_SUM),
            ReduceOp::Product if is_wide_float => Some(ffi::RSMPI_PROD),
            ReduceOp::BitAnd if is_integer => Some(ffi::RSMPI_BAND),
            ReduceOp::BitOr if is_integer => Some(ffi::RSMPI_BOR),
            ReduceOp::BitXor if is_integer => Some(ffi::RSMPI_BXOR),
            _ => None,
        }
    }
}

/// Creates an operator from our kernel.
fn own(function: Function) -> Result<ffi::MPI_Op> {
    // SAFETY: a constant of the library, and a function of the type that MPI requires.
    unsafe {
        let mut op = ffi::RSMPI_SUM;
        check("create an MPI operator", ffi::MPI_Op_create(Some(function), 1, &raw mut op)).map(|()| op)
    }
}

/// Returns MPI's name of an element type.
fn name(dtype: DType, half: ffi::MPI_Datatype) -> ffi::MPI_Datatype {
    // SAFETY: constants of the library.
    unsafe {
        match dtype {
            DType::U8 | DType::Bool => ffi::RSMPI_UINT8_T,
            DType::I8 => ffi::RSMPI_INT8_T,
            DType::I16 => ffi::RSMPI_INT16_T,
            DType::I32 => ffi::RSMPI_INT32_T,
            DType::I64 => ffi::RSMPI_INT64_T,
            DType::F16 | DType::BF16 => half,
            DType::F32 => ffi::RSMPI_FLOAT,
            DType::F64 => ffi::RSMPI_DOUBLE,
        }
    }
}

/// Creates the type for 16-bit floats: two bytes that MPI does not interpret.
fn half() -> Result<ffi::MPI_Datatype> {
    // SAFETY: constants of the library, and a type made of them.
    unsafe {
        let mut half = ffi::RSMPI_UINT8_T;
        check("create an MPI type", ffi::MPI_Type_contiguous(2, ffi::RSMPI_UINT8_T, &raw mut half))?;
        check("create an MPI type", ffi::MPI_Type_commit(&raw mut half))?;
        Ok(half)
    }
}
