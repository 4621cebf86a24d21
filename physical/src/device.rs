//! Devices: memory plus the arithmetic on it. Open this to add a kernel or a kind of memory.
//!
//! Kernels *enqueue*: they are plain functions that return once the work is ordered behind earlier work on the same
//! memory. On [`Host`] that means done. Collectives and algorithms are written once against this trait and never name a
//! device.

mod arithmetic;
pub mod kernels;
mod reduce;
mod weighted;

use crate::codec::{Codec, CodecError};
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

    /// `to ← 0`.
    fn clear(&self, to: &mut WriteView);

    /// `to ← from`, of equal sizes.
    ///
    /// # Errors
    /// [`Error::Usage`] if sizes or types differ.
    fn copy(&self, from: &ReadView, to: &mut WriteView) -> Result<()>;

    /// `to ← to ∘ from`, element by element, to the bits that [`ReduceOp`] promises in either order; [`ReduceOp::Mean`]
    /// adds, its division being a [`Device::scale`]. What is NaN in the results of this and the following is the one
    /// NaN.
    ///
    /// # Errors
    /// [`Error::Usage`] if sizes or types differ.
    fn reduce(&self, op: ReduceOp, from: &ReadView, to: &mut WriteView) -> Result<()>;

    /// `to ← to × factor`, computed in f64 for f64 and f32, in f32 for 16-bit floats, and rounded once.
    ///
    /// # Errors
    /// [`Error::Usage`] for integers.
    fn scale(&self, factor: f64, to: &mut WriteView) -> Result<()>;

    /// `to ← to + weight × from`, computed in f64 for f64 and in f32 for the narrower floats, and rounded once.
    ///
    /// # Errors
    /// [`Error::Usage`] if sizes or types differ, and for integers.
    fn add_scaled(&self, weight: f64, from: &ReadView, to: &mut WriteView) -> Result<()>;

    /// `to ← Σ weight × term`, in the order of `terms`; a term that is `None` is `to` as it was. Computed in f64 for f64
    /// and f32, in f32 for 16-bit floats, and rounded once.
    ///
    /// # Errors
    /// As [`Device::add_scaled`].
    fn weighted_sum(&self, terms: &[(f64, Option<&ReadView>)], to: &mut WriteView) -> Result<()>;

    /// The message for `from`, written to the beginning of `to`: its size in bytes. See [`Codec::encode`].
    ///
    /// # Errors
    /// [`Error::Usage`] unless `from` holds f32 and `to` at least the codec's largest message; what the codec says.
    fn encode(
        &self,
        codec: &dyn Codec,
        from: &ReadView,
        to: &mut WriteView,
        seed: u64,
    ) -> Result<Result<usize, CodecError>>;

    /// `to ← to + weight × decode(from)`, or `to ← decode(from)` without a weight. See [`Codec::decode_add`].
    ///
    /// # Errors
    /// [`Error::Usage`] unless `to` holds f32; what the codec says.
    fn decode(
        &self,
        codec: &dyn Codec,
        from: &ReadView,
        weight: Option<f32>,
        to: &mut WriteView,
    ) -> Result<Result<(), CodecError>>;
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

    fn clear(&self, to: &mut WriteView) {
        to.bytes_mut().fill(0);
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

    fn add_scaled(&self, weight: f64, from: &ReadView, to: &mut WriteView) -> Result<()> {
        alike(from, to)?;
        weightable(to.dtype())?;
        reduce::add_scaled(to.dtype(), weight, from.bytes(), to.bytes_mut());
        Ok(())
    }

    fn weighted_sum(&self, terms: &[(f64, Option<&ReadView>)], to: &mut WriteView) -> Result<()> {
        terms.iter().filter_map(|(_, term)| *term).try_for_each(|term| alike(term, to))?;
        weightable(to.dtype())?;
        let terms: Vec<_> = terms.iter().map(|(weight, term)| (*weight, term.map(ReadView::bytes))).collect();
        weighted::sum(to.dtype(), &terms, to.bytes_mut());
        Ok(())
    }

    fn encode(
        &self,
        codec: &dyn Codec,
        from: &ReadView,
        to: &mut WriteView,
        seed: u64,
    ) -> Result<Result<usize, CodecError>> {
        encodable(from.dtype())?;
        let from: &[f32] = bytemuck::cast_slice(from.bytes());
        let largest = codec.encoded_len(from.len());
        let room = to.bytes().len();
        if room < largest {
            let what = format!("{largest} bytes of {} may not fit {room}", codec.name());
            return Err(Error::usage(what, "make room for Codec::encoded_len bytes"));
        }
        Ok(codec.encode(from, to.bytes_mut(), seed).and_then(|bytes| match bytes <= largest {
            true => Ok(bytes),
            false => Err(CodecError::damaged(format!(
                "{bytes} bytes, where its encoded_len says {largest} at most"
            ))),
        }))
    }

    fn decode(
        &self,
        codec: &dyn Codec,
        from: &ReadView,
        weight: Option<f32>,
        to: &mut WriteView,
    ) -> Result<Result<(), CodecError>> {
        encodable(to.dtype())?;
        let to: &mut [f32] = bytemuck::cast_slice_mut(to.bytes_mut());
        Ok(match weight {
            Some(weight) => codec.decode_add(from.bytes(), weight, to),
            None => codec.decode(from.bytes(), to),
        })
    }
}

fn weightable(dtype: DType) -> Result<()> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(Error::usage(format!("{dtype} cannot be weighted"), "use a float type"))
}

fn encodable(dtype: DType) -> Result<()> {
    if dtype == DType::F32 {
        return Ok(());
    }
    Err(Error::usage(format!("codecs encode f32, not {dtype}"), "convert to f32 first"))
}

fn alike(from: &ReadView, to: &WriteView) -> Result<()> {
    if from.dtype() == to.dtype() && from.bytes().len() == to.bytes().len() {
        return Ok(());
    }
    let say = |dtype: DType, bytes: usize| format!("{bytes} bytes of {dtype}");
    let from = say(from.dtype(), from.bytes().len());
    let to = say(to.dtype(), to.bytes().len());
    Err(Error::usage(format!("{from} do not fit {to}"), "use ranges of equal type and length"))
}

/// `to ← to × (1 ÷ ranks)`, for float types: what makes a sum a mean.
pub(crate) fn divide(ranks: usize, dtype: DType, to: &mut [u8]) {
    reduce::scale(dtype, 1.0 / ranks as f64, to);
}

/// Makes every NaN the one that reductions here give, after somebody else's reduction of f32 or f64.
#[cfg(feature = "mpi")]
pub(crate) fn canonicalize(dtype: DType, to: &mut [u8]) {
    reduce::canonicalize(dtype, to);
}

/// Adds f32 that another process may write meanwhile, equally many and aligned.
pub(crate) fn add_shared(from: kernels::SharedFloats<'_>, to: &mut [u8]) {
    kernels::add_shared(from, bytemuck::cast_slice_mut(to));
}

/// Accumulates bytes that arrive from a transport; whole elements only, `from` at any alignment.
pub(crate) fn land(op: ReduceOp, dtype: DType, from: &[u8], to: &mut [u8]) {
    reduce::reduce(op, dtype, from, to);
}
