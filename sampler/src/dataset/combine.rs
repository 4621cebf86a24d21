//! Datasets built from vectors and other datasets: items, pairs, transformed samples.

use super::{Cause, Dataset, DatasetError, Fetch};
use std::sync::Arc;

/// Dataset of the elements of a vector, such as labels, file names or tuples. Each sample is a clone of an element.
#[derive(Debug, Clone)]
pub struct Items<T>(pub Vec<T>);

impl<T: Clone + Send + Sync> Dataset for Items<T> {
    type Sample = T;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, _: &Fetch<'_>) -> Result<T, Cause> {
        Ok(self.0[DatasetError::in_range(index, self.0.len())?].clone())
    }
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Sample = D::Sample;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize, fetch: &Fetch<'_>) -> Result<D::Sample, Cause> {
        (**self).get(index, fetch)
    }
}

/// Pairs of the samples of two datasets, such as images and labels, like PyTorch's `TensorDataset`.
#[derive(Debug, Clone)]
pub struct Zip<A, B> {
    one: A,
    other: B,
}

impl<A: Dataset, B: Dataset> Zip<A, B> {
    /// Creates the dataset of pairs of samples with equal indices.
    ///
    /// # Errors
    ///
    /// [`DatasetError::Unequal`] unless both have the same length.
    pub fn new(one: A, other: B) -> Result<Self, DatasetError> {
        if one.len() != other.len() {
            return Err(DatasetError::Unequal { one: one.len(), other: other.len() });
        }
        Ok(Zip { one, other })
    }
}

impl<A: Dataset, B: Dataset> Dataset for Zip<A, B> {
    type Sample = (A::Sample, B::Sample);

    fn len(&self) -> usize {
        self.one.len()
    }

    fn get(&self, index: usize, fetch: &Fetch<'_>) -> Result<Self::Sample, Cause> {
        Ok((self.one.get(index, fetch)?, self.other.get(index, fetch)?))
    }
}

/// A dataset whose samples are transformed by the worker that loads them; see [`Dataset::map`].
#[derive(Debug, Clone)]
pub struct Transformed<D, F> {
    dataset: D,
    transform: F,
}

impl<D, F> Transformed<D, F> {
    pub(super) fn new(dataset: D, transform: F) -> Self {
        Transformed { dataset, transform }
    }
}

impl<D, F, T> Dataset for Transformed<D, F>
where
    D: Dataset,
    F: Fn(D::Sample, &Fetch<'_>) -> Result<T, Cause> + Send + Sync,
{
    type Sample = T;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize, fetch: &Fetch<'_>) -> Result<T, Cause> {
        (self.transform)(self.dataset.get(index, fetch)?, fetch)
    }
}
