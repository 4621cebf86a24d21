//! Samplers and the loader: which samples go to which rank, and threads that fetch them ahead of the training loop.
//!
//! Workers are threads of this process. Each takes the interpreter's lock for as long as a sample or a batch is made, and
//! what makes them releases it where it reads, decodes or computes, as NumPy and torch do. Whoever waits for a batch does
//! so without it. `hexagram/loader.py` is what users see.

mod batches;
mod error;
mod options;
mod sampler;

pub(crate) use batches::{Batches, Loader, end_all};
pub(crate) use sampler::{BatchSampler, RankSampler};
