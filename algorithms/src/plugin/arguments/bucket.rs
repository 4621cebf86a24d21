//! A bucket: tensors that are communicated together, in flat memory. The argument of the hooks of an algorithm.

use hexagram_logical::Buffer;
use hexagram_logical::codec::{Codec, Exact, PerTensor};
use std::ops::Range;
use std::sync::Arc;

/// Gradients and parameters of some tensors of a model, one after the other.
pub struct Bucket {
    /// Gradients of this rank; after the hooks, the input of the optimizer.
    pub gradients: Buffer,
    /// Parameters of this replica, in the same places; empty unless [`Needs::parameters`](crate::Needs) requests them.
    pub parameters: Buffer,
    /// Tensors of the bucket. They cover it without gaps, in the order of their elements.
    pub tensors: Arc<[Tensor]>,
}

impl Bucket {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.gradients.len()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.gradients.is_empty()
    }

    /// Returns the size of each tensor as a matrix, one row for vectors and scalars.
    pub fn matrices(&self) -> Vec<(usize, usize)> {
        let shape = |tensor: &Tensor| tensor.matrix().unwrap_or((1, tensor.elements.len()));
        self.tensors.iter().map(shape).collect()
    }

    /// Creates a codec that encodes each tensor separately, so that messages do not depend on the division into
    /// buckets: `codec` encodes the tensors for which `compressed` returns true, the others are sent in full precision.
    pub fn per_tensor(&self, codec: &Arc<dyn Codec>, compressed: impl Fn(&Tensor) -> bool) -> PerTensor {
        let exact: Arc<dyn Codec> = Arc::new(Exact);
        let choice = |tensor: &Tensor| Arc::clone(if compressed(tensor) { codec } else { &exact });
        PerTensor::new(self.tensors.iter().map(|tensor| (tensor.elements.len(), choice(tensor))))
    }
}

/// Tensor of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name of the parameter.
    pub name: Arc<str>,
    /// Sizes of the tensor, outermost first; none for a scalar.
    pub shape: Vec<usize>,
    /// Range of the elements of the tensor in the bucket, in row-major order.
    pub elements: Range<usize>,
}

impl Tensor {
    /// Returns the size as a matrix, all dimensions but the first combined; `None` for vectors and scalars.
    pub fn matrix(&self) -> Option<(usize, usize)> {
        match *self.shape.as_slice() {
            [] | [_] => None,
            [rows, ..] => Some((rows, self.elements.len().checked_div(rows)?)),
        }
    }
}
