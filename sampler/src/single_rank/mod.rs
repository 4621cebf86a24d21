//! Samplers of one rank, as in PyTorch: in order (`sequential`), at random, of a subset or by weight (`random`), and
//! batches of their draws (`batch`).

mod batch;
mod random;
mod sequential;

pub use batch::BatchSampler;
pub use random::{RandomOptions, RandomSampler, SubsetRandomSampler, WeightedOptions, WeightedRandomSampler};
pub use sequential::SequentialSampler;
