//! QSGD: rounds every element at random, without bias, to one of a few levels between 0 and the norm of its bucket
//! (Alistarh et al. 2017).
//!
//! ```text
//! C(v)_k = ‖v‖₂ sgn(v_k) ξ_k ÷ s,   ξ_k ∈ 0..=s drawn such that E ξ_k = s |v_k| ÷ ‖v‖₂
//! E‖C(v) − v‖² ≤ min(d/s², √d/s) ‖v‖²,   v a bucket of d elements
//!
//! message = bucket …
//! bucket  = ‖v‖₂ as f32, blocks of 512 codes of 1 + ⌈log₂(s+1)⌉ bits, packed as
//!           [`levels`] says; the last block may be shorter
//! ```
//!
//! The random draw of an element depends on the seed and on its place in the message, not on the machine. The
//! probabilities are exact to 2⁻¹⁴ of a level, and to the rounding of f32 with 511 levels or fewer.

#[cfg(feature = "cuda")]
mod cuda;
mod levels;

use super::shared::fields::not_finite_field;
use super::shared::not_finite::{refuse, saturated};
use super::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::options_text::{NamedOptions, Options};
use hexagram_physical::Result;
use hexagram_physical::device::kernels::all_finite;
use hexagram_physical::device::kernels::draw::Keys;
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::Program;
use levels::{BLOCK, Levels, decode_levels, encode_buckets, encode_levels, sum_of_squares};
use std::borrow::Cow;
use std::sync::Arc;

/// Size of the norm of a bucket, in bytes.
const NORM: usize = 4;

/// Largest number of elements of a bucket: more than a run can have, and few enough that sizes do not overflow.
const LONGEST: usize = usize::MAX / 16;

/// Norm below which buckets are multiplied by [`LIFT`] before the division by it, so that the quotient does not
/// overflow.
const SMALL: f32 = 1.0 / (1u64 << 63) as f32;
const LIFT: f32 = (1u128 << 96) as f32;

/// Codec that quantizes at random to levels of the norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qsgd {
    levels: Levels,
    bucket: usize,
    not_finite: NotFinite,
}

impl Qsgd {
    /// Creates a codec with `levels` levels above 0, in buckets of 512 elements, that refuses NaN and infinity. Codes
    /// have 2 bits for 1 level, 3 for 3, 4 for 7, 8 for 127.
    ///
    /// # Errors
    /// [`hexagram_physical::Error::Usage`] unless `levels` is from 1 to 2¹⁵.
    pub fn new(levels: u32) -> Result<Self> {
        let mut codec = Self::default();
        Options::check(codec.keyword(), |options| codec.levels_field(levels, options))?;
        Ok(codec)
    }

    /// Sets the number of elements that share a norm: a smaller number reduces the error and enlarges the message.
    /// Multiples of 512 are fastest.
    ///
    /// # Errors
    /// [`hexagram_physical::Error::Usage`] if `bucket` is 0.
    pub fn with_bucket(self, bucket: usize) -> Result<Self> {
        Qsgd { bucket: bucket.min(LONGEST), ..self }.checked()
    }

    /// Sets the treatment of NaN and infinity. They propagate to their whole bucket, as NaN.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        Qsgd { not_finite, ..self }
    }

    /// Adds the option for the number of levels, with the value `levels`.
    fn levels_field(&mut self, mut levels: u32, options: &mut Options) -> Result<()> {
        options.field("levels", &mut levels, 1..=Levels::MOST, "levels above 0")?;
        self.levels = Levels::new(levels).unwrap_or(self.levels);
        Ok(())
    }

    fn bucket_len(&self, len: usize) -> usize {
        NORM + len / BLOCK * self.levels.packed_len(BLOCK) + self.levels.packed_len(len % BLOCK)
    }

    /// Encodes a bucket that is not finite, or whose norm is too small or too large for a plain division.
    fn encode_with_care(
        &self,
        from: &[f32],
        to: &mut [u8],
        number: usize,
        keys: Keys,
    ) -> Result<(), CodecError> {
        let (head, codes) = to.split_at_mut(NORM);
        let from = match self.not_finite {
            _ if all_finite(from) => Cow::Borrowed(from),
            NotFinite::Refuse => return Err(refuse(from, number * self.bucket, f32::is_finite)),
            NotFinite::Saturate => Cow::Owned(from.iter().map(|x| saturated(*x, f32::MAX)).collect()),
            NotFinite::Propagate => {
                head.copy_from_slice(&f32::NAN.to_le_bytes());
                codes.fill(0);
                return Ok(());
            }
        };
        // No element exceeds the norm, even if the norm itself overflows f32.
        let norm = (sum_of_squares(&from).sqrt() as f32).min(f32::MAX);
        head.copy_from_slice(&norm.to_le_bytes());
        if norm == 0.0 {
            codes.fill(0);
            return Ok(());
        }
        let lift = if norm < SMALL { LIFT } else { 1.0 };
        let first = number * self.bucket.div_ceil(BLOCK);
        let codes = codes.chunks_mut(self.levels.packed_len(BLOCK));
        for (block, (x, codes)) in from.chunks(BLOCK).zip(codes).enumerate() {
            let mut lifted = [0.0; BLOCK];
            lifted.iter_mut().zip(x).for_each(|(to, x)| *to = x * lift);
            encode_levels(self.levels, norm * lift, keys.of(first + block), &lifted[..x.len()], codes);
        }
        Ok(())
    }

    fn accumulate(&self, from: &[u8], weight: f32, fresh: bool, to: &mut [f32]) -> Result<(), CodecError> {
        let want = self.encoded_len(to.len());
        if from.len() != want {
            return Err(CodecError::damaged(format!("{} bytes, not {want}", from.len())));
        }
        let buckets = from.chunks(self.bucket_len(self.bucket));
        for (from, to) in buckets.zip(to.chunks_mut(self.bucket)) {
            let Some((norm, codes)) = from.split_first_chunk() else { break };
            let norm = f32::from_le_bytes(*norm);
            if norm.is_sign_negative() || norm == f32::INFINITY {
                return Err(CodecError::damaged(format!("a norm of {norm}")));
            }
            let unit = unit(norm, self.levels.count() as f32);
            let codes = codes.chunks(self.levels.packed_len(BLOCK));
            for (codes, to) in codes.zip(to.chunks_mut(BLOCK)) {
                if !decode_levels(self.levels, unit, weight, fresh, codes, to) {
                    return Err(CodecError::damaged(format!("a level above {}", self.levels.count())));
                }
            }
        }
        Ok(())
    }
}

impl Default for Qsgd {
    /// Returns the codec with 7 levels: 4 bits for each number.
    fn default() -> Self {
        Qsgd { levels: Levels::default(), bucket: BLOCK, not_finite: NotFinite::default() }
    }
}

impl NamedOptions for Qsgd {
    fn keyword(&self) -> &'static str {
        "qsgd"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.levels_field(self.levels.count(), options)?;
        options.field("bucket", &mut self.bucket, 1..=LONGEST, "elements that share a norm")?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for Qsgd {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: true, contraction: None, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        let rest = len % self.bucket;
        let last = if rest == 0 { 0 } else { self.bucket_len(rest) };
        len / self.bucket * self.bucket_len(self.bucket) + last
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(*self))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
        let keys = Keys::new(seed);
        let size = self.encoded_len(from.len());
        let blocks = self.bucket.div_ceil(BLOCK);
        let step = self.bucket_len(self.bucket);
        let mut number = 0;
        while let Some(x) = from.get(number * self.bucket..).filter(|x| !x.is_empty()) {
            let to = &mut to[number * step..size];
            let done = encode_buckets(self.levels, self.bucket, keys, number * blocks, x, to);
            number += done;
            let x = x.chunks(self.bucket).nth(done);
            let to = to.chunks_mut(step).nth(done);
            if let (Some(x), Some(to)) = (x, to) {
                self.encode_with_care(x, to, number, keys)?;
                number += 1;
            }
        }
        Ok(size)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        self.accumulate(from, weight, false, to)
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        self.accumulate(from, 1.0, true, to)
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, seed: u64) -> Option<Program> {
        Some(self.encoding(len, seed))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        Some(self.decoding(len, weight))
    }
}

/// Returns the distance of levels; rounded down if the last level would otherwise be infinite.
fn unit(norm: f32, levels: f32) -> f32 {
    let unit = norm / levels;
    if unit * levels <= f32::MAX || norm.is_nan() { unit } else { unit.next_down() }
}
