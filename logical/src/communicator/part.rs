//! Parts of buffers, which primitives pass on before they make a view.

use hexagram_physical::memory::{ReadView, WriteView};
use hexagram_physical::{Buffer, Result};
use std::ops::Range;

/// Range of elements of a buffer.
#[derive(Clone)]
pub struct Part<'a> {
    /// Buffer of the elements.
    pub buffer: &'a Buffer,
    /// Range of the elements in the buffer.
    pub range: Range<usize>,
}

impl<'a> Part<'a> {
    /// Returns all elements of a buffer.
    pub fn whole(buffer: &'a Buffer) -> Self {
        Part { buffer, range: 0..buffer.len() }
    }

    /// Returns a range of the elements of a buffer.
    pub fn of(buffer: &'a Buffer, range: Range<usize>) -> Self {
        Part { buffer, range }
    }

    /// Returns the first `len` of these elements.
    pub(crate) fn first(&self, len: usize) -> Self {
        Part { buffer: self.buffer, range: self.range.start..self.range.start + len }
    }

    pub(crate) fn read(&self) -> Result<ReadView> {
        self.buffer.read(self.range.clone())
    }

    pub(crate) fn write(&self) -> Result<WriteView> {
        self.buffer.write(self.range.clone())
    }
}
