//! Batches and their memory.
//!
//! | file | content |
//! |---|---|
//! | `collate` | makes batches of samples |
//! | `array` | an array of numbers with a shape |
//! | `pool`, `memory` | reusable buffers, on the heap or elsewhere |
//! | `prefetch` | a processor hint before samples are copied |

mod array;
mod collate;
mod memory;
mod pool;
mod prefetch;

pub use array::{Array, MAX_DIMENSIONS, Shape, ShapeError, Store};
pub use collate::{Collate, CollateError, Misfit, padded};
pub use memory::{Bytes, Memory};
pub use pool::{Buffer, Element, Pool, PoolUsage};
