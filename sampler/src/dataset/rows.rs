//! Samples of equal shape in one block of memory. Every sample is a view: no data is copied before the batch is made.

use super::map::Map;
use super::{Cause, Dataset, DatasetError, Fetch};
use crate::loader::{Array, Element, Shape, Store};
use std::path::Path;
use std::sync::Arc;

/// The rows of an array, or the records of a mapped file.
#[derive(Clone)]
pub struct Rows<T> {
    store: Store<T>,
    shape: Shape,
    /// The first element of row 0.
    start: usize,
    /// Elements from one row to the next.
    stride: usize,
    len: usize,
}

impl<T: Element> Rows<T> {
    /// Creates a dataset of the rows of an array. The first dimension counts samples, as in PyTorch; an array without
    /// dimensions has no samples.
    pub fn new(array: Array<T>) -> Self {
        let (len, shape) = match array.shape().split_first() {
            Some((len, rest)) => (*len, Shape::of(rest).unwrap_or_default()),
            None => (0, Shape::default()),
        };
        Rows { start: 0, stride: shape.elements(), store: Arc::new(array), shape, len }
    }

    /// Maps the records of a file: a header of `header` bytes, then arrays of `shape`, in the byte order of the
    /// machine.
    ///
    /// The file is mapped, not read. Do not truncate it while the dataset exists: Linux would end the process with
    /// SIGBUS.
    ///
    /// # Errors
    ///
    /// [`DatasetError`] if the file cannot be opened, its size is not the header plus whole records, or the header
    /// misaligns the elements.
    pub fn open(
        path: impl AsRef<Path>,
        header: usize,
        shape: impl Into<Shape>,
    ) -> Result<Self, DatasetError> {
        let path = path.as_ref();
        let shape = shape.into();
        let map = Map::open(path)?;
        let size = map.bytes().len();
        let record = shape.elements().saturating_mul(size_of::<T>());
        if record == 0 || size < header || !(size - header).is_multiple_of(record) {
            let what = format!(
                "{size} bytes are not a header of {header} bytes and records of {record} bytes (shape {shape})"
            );
            return Err(DatasetError::format(path, what, "correct the header or the shape"));
        }
        if !header.is_multiple_of(size_of::<T>()) {
            let what = format!("a header of {header} bytes misaligns the records");
            return Err(DatasetError::format(path, what, "read the records as bytes, with `Rows::<u8>`"));
        }
        let start = header / size_of::<T>();
        let len = (size - header) / record;
        Ok(Rows { store: Arc::new(map), shape, start, stride: shape.elements(), len })
    }

    /// Creates a dataset of a part of shared memory. Whether the memory is long enough is checked when a row is
    /// loaded.
    pub(super) fn part(store: Store<T>, start: usize, stride: usize, shape: Shape, len: usize) -> Self {
        Rows { store, shape, start, stride, len }
    }

    /// Returns the shape of each sample.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns one sample, a view of the shared memory.
    ///
    /// # Errors
    ///
    /// [`DatasetError::OutOfRange`] if `index` is not below the length.
    pub fn row(&self, index: usize) -> Result<Array<T>, Cause> {
        let index = DatasetError::in_range(index, self.len)?;
        Ok(Array::view(self.shape, &self.store, self.start + index * self.stride)?)
    }
}

impl<T: Element> Dataset for Rows<T> {
    type Sample = Array<T>;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, _: &Fetch<'_>) -> Result<Array<T>, Cause> {
        self.row(index)
    }
}
