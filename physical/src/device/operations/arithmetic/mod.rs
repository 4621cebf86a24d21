//! Arithmetic on views: the operations of collectives and algorithms on a buffer.
//!
//! The work runs on the queue of the written view. Neither this module nor its callers name the device; on the host,
//! operations complete immediately, without a dispatch table. Every NaN in a result is the NaN that [`ReduceOp`]
//! defines.

use super::cross_device;
use crate::device::codec::{Codec, CodecError};
use crate::device::host;
use crate::error::{Error, Result};
use crate::memory::dtype::{DType, ReduceOp};
use crate::memory::{Buffer, ReadView, WriteView};
use crate::runtime::{Work, charge};

impl WriteView {
    /// Sets every element to 0.
    pub fn clear(&mut self) {
        match self.host_bytes_mut() {
            Some(to) => {
                charge(|| Work::Fill { bytes: to.len() });
                to.fill(0);
            }
            None => cross_device::clear(self),
        }
    }

    /// Copies the elements of `from`, which must have equal type and length.
    ///
    /// # Errors
    /// [`Error::Usage`] if lengths or types differ.
    pub fn copy_from(&mut self, from: &ReadView) -> Result<()> {
        alike(from, self)?;
        match (from.host_bytes(), self.host_bytes_mut()) {
            (Some(from), Some(to)) => {
                charge(|| Work::Copy { bytes: to.len() });
                to.copy_from_slice(from);
            }
            _ => cross_device::copy(from, self)?,
        }
        Ok(())
    }

    /// Copies like [`WriteView::copy_from`], and keeps `from` until the copy is complete: a device then copies host
    /// memory in place, at full speed if it is from [`Queue::host_memory`](crate::device::Queue::host_memory). Other queues
    /// that read the elements of this view wait for the copy only, not for later work.
    ///
    /// # Errors
    /// As [`WriteView::copy_from`].
    pub fn copy_keeping(&mut self, from: ReadView) -> Result<()> {
        if self.is_on_host() || !from.is_on_host() {
            return self.copy_from(&from);
        }
        alike(&from, self)?;
        self.copy_up_ahead(from);
        Ok(())
    }

    /// Combines each element with that of `from`: `self ← self ∘ from`, with the bits that [`ReduceOp`] defines, in
    /// either order. [`ReduceOp::Mean`] adds; its division is a [`WriteView::scale`].
    ///
    /// # Errors
    /// [`Error::Usage`] if lengths or types differ, and for bitwise reductions of floats.
    pub fn reduce(&mut self, op: ReduceOp, from: &ReadView) -> Result<()> {
        alike(from, self)?;
        let dtype = self.dtype();
        if op.is_bitwise() {
            op.check(dtype)?;
        }
        match (from.host_bytes(), self.host_bytes_mut()) {
            (Some(from), Some(to)) => host::reduce(op, dtype, from, to),
            _ => cross_device::reduce(op, from, self)?,
        }
        Ok(())
    }

    /// Multiplies each element: `self ← factor × self`, computed in f64 for f64 and f32, in f32 for 16-bit floats, and
    /// rounded once.
    ///
    /// # Errors
    /// [`Error::Usage`] for integers.
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        let dtype = self.dtype();
        if !dtype.is_float() {
            return Err(Error::usage(format!("{dtype} cannot be scaled"), "use a float type"));
        }
        match self.host_bytes_mut() {
            Some(to) => host::scale(dtype, factor, to),
            None => cross_device::scale(factor, self),
        }
        Ok(())
    }

    /// Adds a multiple of `from`: `self ← self + weight × from`, computed in f64 for f64 and in f32 for the narrower
    /// floats, and rounded once.
    ///
    /// # Errors
    /// [`Error::Usage`] if lengths or types differ, and for integers.
    pub fn add_scaled(&mut self, weight: f64, from: &ReadView) -> Result<()> {
        alike(from, self)?;
        let dtype = weightable(self.dtype())?;
        match (from.host_bytes(), self.host_bytes_mut()) {
            (Some(from), Some(to)) => host::add_scaled(dtype, weight, from, to),
            _ => cross_device::add_scaled(weight, from, self)?,
        }
        Ok(())
    }

    /// Stores a weighted sum, `self ← Σ weight × term`, in the order of `terms`; the term `None` is the previous
    /// value of `self`. Computed in f64 for f64 and f32, in f32 for 16-bit floats, and rounded once.
    ///
    /// # Errors
    /// As [`WriteView::add_scaled`].
    pub fn weighted_sum(&mut self, terms: &[(f64, Option<&ReadView>)]) -> Result<()> {
        terms.iter().filter_map(|(_, term)| *term).try_for_each(|term| alike(term, self))?;
        let dtype = weightable(self.dtype())?;
        let all_on_host = terms.iter().all(|(_, term)| term.is_none_or(ReadView::is_on_host));
        match self.host_bytes_mut().filter(|_| all_on_host) {
            Some(to) => {
                let terms: Vec<_> = terms
                    .iter()
                    .map(|(weight, term)| (*weight, term.and_then(ReadView::host_bytes)))
                    .collect();
                host::weighted_sum(dtype, &terms, to);
            }
            None => cross_device::weighted_sum(terms, self)?,
        }
        Ok(())
    }

    /// Encodes `from` to the beginning of this view, which holds bytes; returns the size of the message in bytes. See
    /// [`Codec::encode`].
    ///
    /// On a device, the refusal of a codec becomes a [failure](crate::device::Failure) of the queue if the [size of
    /// the codec follows from the length](Codec::has_fixed_size); otherwise this call waits for the queue.
    ///
    /// # Errors
    /// [`Error::Usage`] unless `from` holds f32, and this view is large enough for the largest message of the codec;
    /// the error of the codec.
    pub fn encode(
        &mut self,
        codec: &dyn Codec,
        from: &ReadView,
        seed: u64,
    ) -> Result<Result<usize, CodecError>> {
        encodable(from.dtype())?;
        let largest = codec.encoded_len(from.len());
        let room = self.byte_len();
        if room < largest {
            let what = format!("{largest} bytes of {} may exceed {room}", codec.name());
            return Err(Error::usage(what, "use a buffer of Codec::encoded_len bytes"));
        }
        match (from.host_bytes(), self.host_bytes_mut()) {
            (Some(from), Some(to)) => Ok(host::encode(codec, from, to, seed)),
            _ => cross_device::encode(codec, from, self, seed),
        }
    }

    /// Decodes the message `from`: `self ← self + weight × decode(from)`, or `self ← decode(from)` without a weight.
    /// See [`Codec::decode_add`].
    ///
    /// On a device a damaged message is a [failure](crate::device::Failure) of the queue.
    ///
    /// # Errors
    /// [`Error::Usage`] unless this view holds f32; the error of the codec.
    pub fn decode(
        &mut self,
        codec: &dyn Codec,
        from: &ReadView,
        weight: Option<f32>,
    ) -> Result<Result<(), CodecError>> {
        encodable(self.dtype())?;
        match (from.host_bytes(), self.host_bytes_mut()) {
            (Some(from), Some(to)) => Ok(host::decode(codec, from, weight, to)),
            _ => cross_device::decode(codec, from, weight, self),
        }
    }
}

impl Buffer {
    /// Leases all elements for reading.
    ///
    /// # Errors
    /// As [`Buffer::read`].
    pub fn read_all(&self) -> Result<ReadView> {
        self.read(0..self.len())
    }

    /// Leases all elements for writing.
    ///
    /// # Errors
    /// As [`Buffer::write`].
    pub fn write_all(&self) -> Result<WriteView> {
        self.write(0..self.len())
    }

    /// Returns zeroed elements in memory of the same kind, on the same queue.
    ///
    /// # Errors
    /// As [`Buffer::zeroed_on`].
    pub fn zeroed_same_device(&self, dtype: DType, len: usize) -> Result<Buffer> {
        Buffer::zeroed_on(&self.queue(), dtype, len)
    }

    /// Returns a copy of the elements, in memory of the same kind, on the same queue.
    ///
    /// # Errors
    /// As [`Buffer::zeroed_same_device`] and [`Buffer::read`].
    pub fn copied(&self) -> Result<Buffer> {
        let copy = self.zeroed_same_device(self.dtype(), self.len())?;
        copy.write_all()?.copy_from(&self.read_all()?)?;
        Ok(copy)
    }
}

fn weightable(dtype: DType) -> Result<DType> {
    if dtype.is_float() {
        return Ok(dtype);
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
    if from.dtype() == to.dtype() && from.byte_len() == to.byte_len() {
        return Ok(());
    }
    let say = |dtype: DType, bytes: usize| format!("{bytes} bytes of {dtype}");
    let from = say(from.dtype(), from.byte_len());
    let to = say(to.dtype(), to.byte_len());
    Err(Error::usage(format!("{from} do not match {to}"), "use ranges of equal type and length"))
}

#[cfg(test)]
mod tests;
