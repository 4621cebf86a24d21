//! The built-in codecs. A user's own type plugs in as they do: see [`Codec`].
//!
//! | codec | bytes for d elements | unbiased | δ | linear |
//! |---|---|---|---|---|
//! | [`Half`] f16, bf16 | 2d | no | ≈ 1 | up to rounding |

mod half;

pub use half::Half;
pub use hexagram_physical::codec::{Codec, CodecError, Noise, NotFinite, Properties};
