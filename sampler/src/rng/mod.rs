//! Random numbers and orders. With the same seed they are those of PyTorch, except for `keyed`.
//!
//! | file | content |
//! |---|---|
//! | `mersenne` | the random number generator of PyTorch |
//! | `permutation` | a random order of all samples, as an array |
//! | `multinomial` | draws by weight |
//! | `keyed` | a random order that takes no memory |

mod keyed;
mod mersenne;
pub(crate) mod multinomial;
mod permutation;

pub use keyed::KeyedPermutation;
pub(super) use keyed::{GOLDEN, mixed};
pub use mersenne::Mersenne;
pub(super) use permutation::DrawnOrder;
pub use permutation::randperm;
