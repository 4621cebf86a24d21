//! An array of numbers with a shape: the samples of image and record datasets, and the batches stacked from them.

use super::pool::{Buffer, Element, Pool};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Maximum number of dimensions of an array, including the batch dimension.
pub const MAX_DIMENSIONS: usize = 8;

/// Sizes of the dimensions of an array, outermost first; none for a single number.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    sizes: [usize; MAX_DIMENSIONS],
    dimensions: usize,
}

impl Shape {
    /// Creates a shape of these sizes; `None` beyond [`MAX_DIMENSIONS`].
    pub fn of(given: &[usize]) -> Option<Shape> {
        let mut sizes = [0; MAX_DIMENSIONS];
        sizes.get_mut(..given.len())?.copy_from_slice(given);
        Some(Shape { sizes, dimensions: given.len() })
    }

    /// Returns this shape with an additional first dimension of `size`; `None` beyond [`MAX_DIMENSIONS`].
    pub fn stacked(&self, size: usize) -> Option<Shape> {
        if self.dimensions == MAX_DIMENSIONS {
            return None;
        }
        let mut sizes = self.sizes;
        sizes.rotate_right(1);
        sizes[0] = size;
        Some(Shape { sizes, dimensions: self.dimensions + 1 })
    }

    /// Returns the number of elements of an array of this shape: the product of all sizes.
    pub fn elements(&self) -> usize {
        self.iter().fold(1, |product, size| product.saturating_mul(*size))
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(given: [usize; N]) -> Self {
        const { assert!(N <= MAX_DIMENSIONS, "an array has at most 8 dimensions") };
        let mut sizes = [0; MAX_DIMENSIONS];
        sizes[..N].copy_from_slice(&given);
        Shape { sizes, dimensions: N }
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.sizes[..self.dimensions]
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Numbers and their shape, in row-major order.
///
/// Views of a dataset share its memory ([`Array::view`]); batches own pooled memory.
pub struct Array<T: Element> {
    shape: Shape,
    data: ArrayData<T>,
}

/// Memory that several arrays may view: a vector, or a mapped file.
pub type Store<T> = Arc<dyn AsRef<[T]> + Send + Sync>;

enum ArrayData<T: Element> {
    Pooled(Buffer<T>),
    Own(Vec<T>),
    Shared { store: Store<T>, start: usize },
}

/// Number of elements that does not match a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeError {
    /// The requested shape.
    pub shape: Shape,
    /// Number of elements.
    pub elements: usize,
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShapeError { shape, elements } = self;
        write!(
            f,
            "an array of shape {shape} has {} elements, not {elements}; correct the shape",
            shape.elements()
        )
    }
}

impl std::error::Error for ShapeError {}

impl<T: Element> Array<T> {
    /// Creates an array from elements in row-major order.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] unless the number of elements is that of the shape.
    pub fn new(shape: impl Into<Shape>, elements: Vec<T>) -> Result<Self, ShapeError> {
        let shape = checked(shape.into(), elements.len())?;
        Ok(Array { shape, data: ArrayData::Own(elements) })
    }

    /// Creates an array in pooled memory from [`Pool::take`].
    ///
    /// # Errors
    ///
    /// [`ShapeError`] unless the number of elements is that of the shape.
    pub fn pooled(shape: impl Into<Shape>, elements: Buffer<T>) -> Result<Self, ShapeError> {
        let shape = checked(shape.into(), elements.len())?;
        Ok(Array { shape, data: ArrayData::Pooled(elements) })
    }

    /// Creates a view of the elements from `start` on in shared memory, without a copy.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] if the memory ends before the array.
    pub fn view(shape: impl Into<Shape>, store: &Store<T>, start: usize) -> Result<Self, ShapeError> {
        let shape = shape.into();
        let left = (**store).as_ref().len().saturating_sub(start);
        checked(shape, left.min(shape.elements()))?;
        Ok(Array { shape, data: ArrayData::Shared { store: store.clone(), start } })
    }

    /// Creates an array in a buffer that was taken for this shape.
    pub(super) fn filling(shape: Shape, elements: Buffer<T>) -> Self {
        debug_assert_eq!(shape.elements(), elements.len());
        Array { shape, data: ArrayData::Pooled(elements) }
    }

    /// Returns the sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns all elements, in row-major order.
    pub fn as_slice(&self) -> &[T] {
        match &self.data {
            ArrayData::Pooled(buffer) => buffer,
            ArrayData::Own(elements) => elements,
            ArrayData::Shared { store, start } => &(**store).as_ref()[*start..][..self.shape.elements()],
        }
    }

    /// Returns all elements for writing; a view is copied first.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if let ArrayData::Shared { .. } = self.data {
            self.data = ArrayData::Own(self.as_slice().to_vec());
        }
        match &mut self.data {
            ArrayData::Pooled(buffer) => buffer,
            ArrayData::Own(elements) => elements,
            ArrayData::Shared { .. } => &mut [],
        }
    }

    /// Returns the same elements with a different shape.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] unless the shape has the same number of elements.
    pub fn reshaped(self, shape: impl Into<Shape>) -> Result<Self, ShapeError> {
        let shape = checked(shape.into(), self.shape.elements())?;
        Ok(Array { shape, ..self })
    }

    /// Returns the converted elements in memory of `pool`, for instance pixels as floats.
    pub fn map<U: Element>(&self, pool: &Pool, convert: impl Fn(T) -> U) -> Array<U> {
        let mut buffer = pool.take(self.shape.elements());
        for (to, from) in buffer.iter_mut().zip(self.as_slice()) {
            *to = convert(*from);
        }
        Array { shape: self.shape, data: ArrayData::Pooled(buffer) }
    }
}

fn checked(shape: Shape, elements: usize) -> Result<Shape, ShapeError> {
    if shape.elements() == elements { Ok(shape) } else { Err(ShapeError { shape, elements }) }
}

impl<T: Element> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T: Element> AsRef<[T]> for Array<T> {
    fn as_ref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T: Element + PartialEq> PartialEq for Array<T> {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.as_slice() == other.as_slice()
    }
}

impl<T: Element> Clone for Array<T> {
    fn clone(&self) -> Self {
        let data = match &self.data {
            ArrayData::Shared { store, start } => ArrayData::Shared { store: store.clone(), start: *start },
            _ => ArrayData::Own(self.as_slice().to_vec()),
        };
        Array { shape: self.shape, data }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array{} ", self.shape)?;
        f.debug_list().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_elements_must_agree() {
        assert!(Array::new([2, 3], vec![0u8; 6]).is_ok());
        let error = Array::new([2, 3], vec![0u8; 5]).unwrap_err().to_string();
        assert_eq!(error, "an array of shape [2, 3] has 6 elements, not 5; correct the shape");
        let store: Store<u8> = Arc::new(vec![1, 2, 3]);
        assert!(Array::view([3], &store, 0).is_ok());
        assert!(Array::view([3], &store, 1).is_err());
        assert!(Array::view([1], &store, 99).is_err());
        assert!(Array::<u8>::new([usize::MAX, 2], vec![]).is_err());
    }

    #[test]
    fn changing_a_view_leaves_the_dataset_alone() {
        let store: Store<u8> = Arc::new(vec![1, 2, 3, 4]);
        let mut view = Array::view([2], &store, 1).unwrap();
        assert_eq!(view.as_slice(), [2, 3]);
        view.as_mut_slice()[0] = 9;
        assert_eq!(view.as_slice(), [9, 3]);
        assert_eq!((*store).as_ref(), [1, 2, 3, 4]);
    }

    #[test]
    fn stacking_stops_at_the_most_dimensions() {
        let mut shape = Shape::default();
        assert_eq!(shape.elements(), 1);
        for size in (1..=MAX_DIMENSIONS).rev() {
            shape = shape.stacked(size).unwrap();
        }
        assert_eq!(shape.to_string(), "[1, 2, 3, 4, 5, 6, 7, 8]");
        assert_eq!(shape.stacked(2), None);
    }

    #[test]
    fn conversion_keeps_the_shape() {
        let array = Array::new([1, 2], vec![0u8, 255]).unwrap();
        let floats = array.map(&Pool::new(), |pixel| f32::from(pixel) / 255.0);
        assert_eq!(floats, Array::new([1, 2], vec![0.0, 1.0]).unwrap());
        assert_eq!(*floats.clone().reshaped([2, 1, 1]).unwrap().shape(), [2, 1, 1].into());
        assert!(floats.reshaped([3]).is_err());
    }
}
