//! The built-in codecs. For a codec of your own, implement [`Codec`]. To add one here, follow section 7 of
//! `docs/write-your-own-codec.md`.
//!
//! | codec | bytes for d elements | unbiased | δ | linear |
//! |---|---|---|---|---|
//! | [`Half`] f16, bf16 | 2d | no | f16 none, bf16 1 − 2⁻¹⁶ | up to rounding |
//! | [`MinMax8`] in blocks of B, or whole | d + 8⌈d/B⌉ | no | 1 − B/130050, .984 for B = 2048 | no |
//! | [`E4M3`] in blocks of B | d + 4⌈d/B⌉ | no | .996 | no |
//! | [`E3M0`] in blocks of B | d/2 + 4⌈d/B⌉ | no | 8/9 for B ≤ 2049 | no |
//! | [`Int4`] in blocks of B | d/2 + 4⌈d/B⌉ | no | 196/(B + 195) | no |
//! | [`Sign`] in blocks of B, or whole | d/8 + 4⌈d/B⌉ | no | ‖x‖₁²/(B‖x‖₂²), at worst 1/B | no |
//! | [`Qsgd`] of s levels, in buckets of B | d(1 + ⌈log₂(s+1)⌉)/8 + 4⌈d/B⌉ | yes | – | no |
//! | [`TopK`] of k elements, of a run or of chunks | 4k + k(2 + ⌈log₂(d/k)⌉)/8 + 2 at most | no | k/d | no |
//! | [`TopK`] in two bits | 16 + k/4 + k(2 + ⌈log₂(d/k)⌉)/8 + 3 at most | no | – | no |
//! | [`RandomK`] of k elements | 8 + 4k; as a [`LinearCodec`] 4k | if scaled | k/d unscaled | yes |
//! | [`Exact`], which does not encode | 4d | yes | 1 | yes |
//! | [`PerTensor`], a codec for each tensor | the sum over tensors | if all are | the smallest | if all are |
//! | [`PowerSgd`] of rank r, only a [`LinearCodec`] | 4r(rows + columns) per matrix | no | – | in each round |
//!
//! Each has a module with its formula and the layout of its message. All have a [`NotFinite`] option, the treatment
//! of NaN and infinity; by default, they refuse them.
//!
//! With the feature `cuda`, a codec with kernels encodes and decodes on the GPU that holds the memory, with the same
//! bits; a [`PerTensor`] does if all of its codecs do. The same holds for [`RandomK`] as a [`LinearCodec`]. Codecs
//! without kernels, such as [`PowerSgd`], work on the host: their input is copied to the host, and their output is
//! copied back. The same holds for a [`RandomK`] that keeps 2³² elements or more.

pub mod e3m0;
pub mod e4m3;
pub mod exact;
#[cfg(test)]
pub mod example;
pub mod half;
pub mod int4;
pub mod min_max;
mod named;
pub mod per_tensor;
pub mod powersgd;
pub mod qsgd;
pub mod random_k;
mod shared;
pub mod sign;
pub mod top_k;

use crate::options_text::Catalogue;
pub use e3m0::E3M0;
pub use e4m3::E4M3;
pub use exact::Exact;
pub use half::Half;
pub use hexagram_physical::codec::{Codec, CodecError, Noise, NotFinite, Properties, encode};
pub use int4::Int4;
pub use min_max::MinMax8;
pub use named::{any_codec, named, names, spelling};
pub use per_tensor::PerTensor;
pub use powersgd::PowerSgd;
pub use powersgd::factors;
pub use qsgd::Qsgd;
pub use random_k::RandomK;
pub use shared::blocks::BlockCodec;
pub use shared::keep::Keep;
pub use shared::linear::{self, LinearCodec, OneRound, Round};
pub use sign::Sign;
use std::sync::Arc;
pub use top_k::TopK;

/// Returns the catalogue of the built-in codecs, with their defaults: QSGD with 7 levels, and 1 % for sparse codecs.
pub fn catalogue() -> Catalogue<Arc<dyn Codec>> {
    Catalogue::new("codec")
        .with(Half::F16, "16-bit floats", counted)
        .with(Half::BF16, "16-bit floats with the exponent range of 32-bit floats", counted)
        .with(MinMax8::default(), "8 bits between the minimum and the maximum of a block", counted)
        .with(
            E4M3::default(),
            "8-bit floats with 4 exponent bits, relative to the maximum of a block",
            counted,
        )
        .with(
            E3M0::default(),
            "4-bit floats with 3 exponent bits, relative to the maximum of a block",
            counted,
        )
        .with(Int4::default(), "4 bits in equal steps up to the maximum of a block", counted)
        .with(Sign::default(), "one bit, and the mean magnitude of a block", counted)
        .with(Qsgd::default(), "random rounding to levels of the norm of a bucket", counted)
        .with(TopK::default(), "the largest elements", counted)
        .with(RandomK::default(), "elements at random places", counted)
}

/// Returns the codec behind a pointer.
fn counted<C: Codec + 'static>(codec: C) -> Arc<dyn Codec> {
    Arc::new(codec)
}
