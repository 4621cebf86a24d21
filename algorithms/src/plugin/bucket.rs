//! A bucket: tensors that are communicated together, in flat memory. What an algorithm's hooks are given.

use hexagram_logical::Buffer;
use std::ops::Range;
use std::sync::Arc;

/// Gradients and parameters of some of a model's tensors, one after the other.
pub struct Bucket {
    /// This rank's gradients; after the hooks, what the optimizer steps with.
    pub gradients: Buffer,
    /// This replica's parameters, in the same places; empty unless [`Needs::parameters`](crate::Needs) asks for them.
    pub parameters: Buffer,
    /// What lies where. They cover the bucket without gaps, in the order of their elements.
    pub tensors: Arc<[Tensor]>,
}

impl Bucket {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.gradients.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.gradients.is_empty()
    }
}

/// One tensor of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The parameter's name.
    pub name: Arc<str>,
    /// Its sizes, outermost first; none for a scalar.
    pub shape: Vec<usize>,
    /// Its elements within the bucket, row by row.
    pub elements: Range<usize>,
}

impl Tensor {
    /// Its sizes as a matrix, all dimensions but the first taken together; `None` for vectors and scalars.
    pub fn matrix(&self) -> Option<(usize, usize)> {
        match *self.shape.as_slice() {
            [] | [_] => None,
            [rows, ..] => Some((rows, self.elements.len().checked_div(rows)?)),
        }
    }
}
