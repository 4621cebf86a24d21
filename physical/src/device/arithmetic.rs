//! Arithmetic on views: what a collective or an algorithm does to a buffer. Open this to see what it may ask for.
//!
//! The work goes to the device of the view that is written. Nothing here names that device, nor does whoever calls it.

use super::{Device, Host};
use crate::codec::{Codec, CodecError};
use crate::dtype::{DType, ReduceOp};
use crate::error::Result;
use crate::memory::{Buffer, ReadView, WriteView};

impl WriteView {
    /// Sets every element to 0.
    pub fn clear(&mut self) {
        Host.clear(self);
    }

    /// Copies the elements of `from`, which has equal type and length.
    ///
    /// # Errors
    /// As [`Device::copy`].
    pub fn copy_from(&mut self, from: &ReadView) -> Result<()> {
        Host.copy(from, self)
    }

    /// Combines each element with that of `from`: `self ← self ∘ from`.
    ///
    /// # Errors
    /// As [`Device::reduce`].
    pub fn reduce(&mut self, op: ReduceOp, from: &ReadView) -> Result<()> {
        Host.reduce(op, from, self)
    }

    /// Multiplies each element: `self ← factor × self`.
    ///
    /// # Errors
    /// As [`Device::scale`].
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        Host.scale(factor, self)
    }

    /// Adds a multiple of `from`: `self ← self + weight × from`.
    ///
    /// # Errors
    /// As [`Device::add_scaled`].
    pub fn add_scaled(&mut self, weight: f64, from: &ReadView) -> Result<()> {
        Host.add_scaled(weight, from, self)
    }

    /// Stores a weighted sum, `self ← Σ weight × term`, where the term `None` is `self` as it was.
    ///
    /// # Errors
    /// As [`Device::weighted_sum`].
    pub fn weighted_sum(&mut self, terms: &[(f64, Option<&ReadView>)]) -> Result<()> {
        Host.weighted_sum(terms, self)
    }

    /// Encodes `from` to the beginning of this view, which holds bytes; returns the size of the message in bytes.
    ///
    /// # Errors
    /// As [`Device::encode`].
    pub fn encode(
        &mut self,
        codec: &dyn Codec,
        from: &ReadView,
        seed: u64,
    ) -> Result<Result<usize, CodecError>> {
        Host.encode(codec, from, self, seed)
    }

    /// Decodes the message `from`: `self ← self + weight × decode(from)`, or `self ← decode(from)` without a weight.
    ///
    /// # Errors
    /// As [`Device::decode`].
    pub fn decode(
        &mut self,
        codec: &dyn Codec,
        from: &ReadView,
        weight: Option<f32>,
    ) -> Result<Result<(), CodecError>> {
        Host.decode(codec, from, weight, self)
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
    /// As [`Buffer::zeroed`].
    pub fn beside(&self, dtype: DType, len: usize) -> Result<Buffer> {
        Host.alloc(dtype, len)
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
