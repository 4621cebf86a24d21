//! Devices: memory plus the arithmetic on it. Open this to add a kernel or a kind of memory.
//!
//! Kernels *enqueue*: they are plain functions that return once the work is ordered behind earlier work on the same
//! memory. On [`Host`] that means done. Collectives and algorithms are written once against this trait and never name a
//! device.

mod reduce;

use crate::dtype::{DType, ReduceOp};
use crate::error::{Error, Result};
use crate::memory::{Buffer, ReadView, WriteView};

/// Memory of one kind, and the arithmetic that runs where that memory is.
pub trait Device: Send + Sync {
    /// What to call it in messages: `host`, `cuda:0`.
    fn name(&self) -> &str;

    /// Zeroed elements in this device's memory.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer>;

    /// `to ← from`, of equal sizes.
    ///
    /// # Errors
    /// [`Error::Usage`] if sizes or types differ.
    fn copy(&self, from: &ReadView, to: &mut WriteView) -> Result<()>;

    /// `to ← to ∘ from`, element by element; [`ReduceOp::Mean`] adds, its division being a [`Device::scale`].
    ///
    /// # Errors
    /// [`Error::Usage`] if sizes or types differ.
    fn reduce(&self, op: ReduceOp, from: &ReadView, to: &mut WriteView) -> Result<()>;

    /// `to ← to × factor`, computed in f64 for f64 and f32, in f32 for 16-bit floats, and rounded once.
    ///
    /// # Errors
    /// [`Error::Usage`] for integers.
    fn scale(&self, factor: f64, to: &mut WriteView) -> Result<()>;
}

/// Host memory and the CPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct Host;

impl Device for Host {
    fn name(&self) -> &str {
        "host"
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer> {
        Buffer::zeroed(dtype, len)
    }

    fn copy(&self, from: &ReadView, to: &mut WriteView) -> Result<()> {
        alike(from, to)?;
        to.bytes_mut().copy_from_slice(from.bytes());
        Ok(())
    }

    fn reduce(&self, op: ReduceOp, from: &ReadView, to: &mut WriteView) -> Result<()> {
        alike(from, to)?;
        reduce::reduce(op, to.dtype(), from.bytes(), to.bytes_mut());
        Ok(())
    }

    fn scale(&self, factor: f64, to: &mut WriteView) -> Result<()> {
        let dtype = to.dtype();
        if !dtype.is_float() {
            return Err(Error::usage(format!("{dtype} cannot be scaled"), "use a float type"));
        }
        reduce::scale(dtype, factor, to.bytes_mut());
        Ok(())
    }
}

fn alike(from: &ReadView, to: &WriteView) -> Result<()> {
    if from.dtype() == to.dtype() && from.bytes().len() == to.bytes().len() {
        return Ok(());
    }
    let say = |dtype: DType, bytes: usize| format!("{bytes} bytes of {dtype}");
    let (from, to) = (say(from.dtype(), from.bytes().len()), say(to.dtype(), to.bytes().len()));
    Err(Error::usage(format!("{from} do not fit {to}"), "use ranges of equal type and length"))
}

/// `to ← to × (1 ÷ ranks)`, for float types: what makes a sum a mean.
pub(crate) fn divide(ranks: usize, dtype: DType, to: &mut [u8]) {
    reduce::scale(dtype, 1.0 / ranks as f64, to);
}

/// Accumulates bytes that arrive from a transport; whole elements only, `from` at any alignment.
pub(crate) fn land(op: ReduceOp, dtype: DType, from: &[u8], to: &mut [u8]) {
    reduce::reduce(op, dtype, from, to);
}
