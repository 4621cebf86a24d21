//! Common parts of codecs: blocks, the treatment of NaN and infinity, options, and linear codecs.

pub(super) mod blocks;
pub(super) mod fields;
pub(super) mod keep;
#[cfg(feature = "cuda")]
pub(super) mod launches;
pub mod linear;
pub(super) mod not_finite;
#[cfg(test)]
mod same_bits;
pub(super) mod scaled;
