//! Arithmetic, as it is charged in a simulated world.

/// Arithmetic on host memory, or on memory that has sizes only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Setting elements to a value.
    Fill {
        /// Bytes that are written.
        bytes: usize,
    },
    /// Copying.
    Copy {
        /// Bytes that are written.
        bytes: usize,
    },
    /// Combining elements with others in place, as a reduction or a multiple of them that is added.
    Reduce {
        /// Bytes that are written.
        bytes: usize,
    },
    /// Multiplying elements in place.
    Scale {
        /// Bytes that are written.
        bytes: usize,
    },
    /// A weighted sum of several runs.
    WeightedSum {
        /// Number of runs.
        terms: usize,
        /// Bytes that are written.
        bytes: usize,
    },
    /// Encoding by a codec.
    Encode {
        /// The codec's name, with its options.
        codec: String,
        /// Elements that are encoded.
        elements: usize,
    },
    /// Decoding by a codec.
    Decode {
        /// The codec's name, with its options.
        codec: String,
        /// Elements that are decoded.
        elements: usize,
    },
    /// A user kernel, element by element, such as a step of an optimizer.
    Kernel {
        /// Bytes that it reads and writes.
        bytes: usize,
    },
    /// Products of matrices, and transforms that are such products.
    Product {
        /// Multiplications and additions.
        operations: u64,
    },
}
