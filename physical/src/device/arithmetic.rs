//! Arithmetic on views: what a collective or an algorithm does to a buffer.
//!
//! The work goes to the queue of the view that is written. Nothing here names its device, nor does whoever calls it; on
//! the host it is done at once, by way of no table. What is NaN in the results is the one NaN that
//! [`ReduceOp`] promises.

use super::{elsewhere, host};
use crate::codec::{Codec, CodecError};
use crate::dtype::{DType, ReduceOp};
use crate::error::{Error, Result};
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
            None => elsewhere::clear(self),
        }
    }

    /// Copies the elements of `from`, which has equal type and length.
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
            _ => elsewhere::copy(from, self)?,
        }
        Ok(())
    }

    /// Copies as [`WriteView::copy_from`] does, and keeps `from` until that is done: a device then copies host memory
    /// from where it lies, at its full speed if that is of [`Queue::host_memory`](super::Queue::host_memory). Other
    /// queues that read this view's elements wait for the copy, and not for what is enqueued behind it.
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

    /// Combines each element with that of `from`: `self ← self ∘ from`, to the bits that [`ReduceOp`] promises in
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
            _ => elsewhere::reduce(op, from, self)?,
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
            None => elsewhere::scale(factor, self),
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
            _ => elsewhere::add_scaled(weight, from, self)?,
        }
        Ok(())
    }

    /// Stores a weighted sum, `self ← Σ weight × term`, in the order of `terms`; the term `None` is `self` as it was.
    /// Computed in f64 for f64 and f32, in f32 for 16-bit floats, and rounded once.
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
            None => elsewhere::weighted_sum(terms, self)?,
        }
        Ok(())
    }

    /// Encodes `from` to the beginning of this view, which holds bytes; returns the size of the message in bytes. See
    /// [`Codec::encode`].
    ///
    /// On a device a codec's refusal is kept as a [failure](crate::device::Failure) of the queue if the codec's [size
    /// follows from the length](Codec::has_fixed_size); otherwise this waits for the queue.
    ///
    /// # Errors
    /// [`Error::Usage`] unless `from` holds f32 and this view at least the codec's largest message; the codec's own
    /// error.
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
            let what = format!("{largest} bytes of {} may not fit {room}", codec.name());
            return Err(Error::usage(what, "make room for Codec::encoded_len bytes"));
        }
        match (from.host_bytes(), self.host_bytes_mut()) {
            (Some(from), Some(to)) => Ok(host::encode(codec, from, to, seed)),
            _ => elsewhere::encode(codec, from, self, seed),
        }
    }

    /// Decodes the message `from`: `self ← self + weight × decode(from)`, or `self ← decode(from)` without a weight.
    /// See [`Codec::decode_add`].
    ///
    /// On a device a damaged message is a [failure](crate::device::Failure) of the queue.
    ///
    /// # Errors
    /// [`Error::Usage`] unless this view holds f32; the codec's own error.
    pub fn decode(
        &mut self,
        codec: &dyn Codec,
        from: &ReadView,
        weight: Option<f32>,
    ) -> Result<Result<(), CodecError>> {
        encodable(self.dtype())?;
        match (from.host_bytes(), self.host_bytes_mut()) {
            (Some(from), Some(to)) => Ok(host::decode(codec, from, weight, to)),
            _ => elsewhere::decode(codec, from, weight, self),
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

    /// Returns zeroed elements beside these: in memory of the same kind, and written in the same order of work.
    ///
    /// # Errors
    /// As [`Buffer::zeroed_on`].
    pub fn beside(&self, dtype: DType, len: usize) -> Result<Buffer> {
        Buffer::zeroed_on(&self.queue(), dtype, len)
    }

    /// Returns a copy of the elements, beside these.
    ///
    /// # Errors
    /// As [`Buffer::beside`] and [`Buffer::read`].
    pub fn copied(&self) -> Result<Buffer> {
        let copy = self.beside(self.dtype(), self.len())?;
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
    Err(Error::usage(format!("{from} do not fit {to}"), "use ranges of equal type and length"))
}

#[cfg(test)]
mod tests;
