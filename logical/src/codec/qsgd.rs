//! QSGD: every element rounded at random to one of a few levels between 0 and its bucket's norm, such that the mean is
//! right (Alistarh et al. 2017).
//!
//! ```text
//! C(v)_k = ‖v‖₂ sgn(v_k) ξ_k ÷ s,   ξ_k ∈ 0..=s drawn such that E ξ_k = s |v_k| ÷ ‖v‖₂
//! E‖C(v) − v‖² ≤ min(d/s², √d/s) ‖v‖²,   v a bucket of d elements
//!
//! message = bucket …
//! bucket  = ‖v‖₂ as f32, blocks of 512 codes of 1 + ⌈log₂(s+1)⌉ bits, packed as hexagram_physical::device::kernels::levels
//!           says; the last block may be shorter
//! ```
//!
//! What is drawn for an element depends on the seed and on where the element is in the message; not on the machine.
//! The probabilities are exact to 2⁻¹⁴ of a level, and to the rounding of f32 with 511 levels or fewer.

use super::finite::{refuse, saturated};
use super::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::encoding::mix;
use hexagram_physical::device::kernels::levels::{
    BLOCK, Levels, decode_levels, encode_levels, sum_of_squares,
};
use hexagram_physical::{Error, Result};

/// Bytes of a bucket's norm.
const NORM: usize = 4;

/// Elements of a bucket, at most: more than a run can have, and few enough that sizes do not overflow.
const LONGEST: usize = usize::MAX / 16;

/// Buckets of a smaller norm are multiplied by [`LIFT`] before they are divided by it, lest the quotient overflow.
const SMALL: f32 = 1.0 / (1u64 << 63) as f32;
const LIFT: f32 = (1u128 << 96) as f32;

/// Quantization at random to levels of the norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qsgd {
    levels: Levels,
    bucket: usize,
    not_finite: NotFinite,
}

impl Qsgd {
    /// With so many levels above 0, in buckets of 512 elements, refusing NaN and infinity. One level makes codes of 2
    /// bits, 3 of 3, 7 of 4, 127 of 8.
    ///
    /// # Errors
    /// [`Error::Usage`] unless there are 1 to 2¹⁵ levels.
    pub fn new(levels: u32) -> Result<Self> {
        let Some(levels) = Levels::new(levels) else {
            let what = format!("QSGD cannot round to {levels} levels");
            return Err(Error::usage(what, format!("choose 1 to {}", Levels::MOST)));
        };
        Ok(Qsgd { levels, bucket: BLOCK, not_finite: NotFinite::default() })
    }

    /// So many elements share a norm: fewer make the error smaller and the message larger. Multiples of 512 are fastest.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are none.
    pub fn with_bucket(self, bucket: usize) -> Result<Self> {
        if bucket == 0 {
            return Err(Error::usage("QSGD cannot round buckets of no elements", "choose 512"));
        }
        Ok(Qsgd { bucket: bucket.min(LONGEST), ..self })
    }

    /// What becomes of NaN and infinity. They propagate to all of their bucket, as NaN.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        Qsgd { not_finite, ..self }
    }

    fn bucket_len(&self, len: usize) -> usize {
        NORM + len / BLOCK * self.levels.packed_len(BLOCK) + self.levels.packed_len(len % BLOCK)
    }

    /// The message of one bucket; its blocks are drawn with the keys from `block` on.
    fn encode_bucket(&self, norm: f32, from: &[f32], to: &mut [u8], keys: Keys, block: usize) {
        let (head, codes) = to.split_at_mut(NORM);
        head.copy_from_slice(&norm.to_le_bytes());
        if norm == 0.0 || norm.is_nan() {
            codes.fill(0);
            return;
        }
        let codes = codes.chunks_mut(self.levels.packed_len(BLOCK));
        for (number, (x, codes)) in from.chunks(BLOCK).zip(codes).enumerate() {
            let key = keys.of(block + number);
            if norm < SMALL {
                let mut lifted = [0.0; BLOCK];
                lifted.iter_mut().zip(x).for_each(|(to, x)| *to = x * LIFT);
                encode_levels(self.levels, norm * LIFT, key, &lifted[..x.len()], codes);
            } else {
                encode_levels(self.levels, norm, key, x, codes);
            }
        }
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

impl Codec for Qsgd {
    fn name(&self) -> String {
        format!("qsgd(levels {}, bucket {}, {:?})", self.levels.count(), self.bucket, self.not_finite)
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: true, contraction: None, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        let rest = len % self.bucket;
        let last = if rest == 0 { 0 } else { self.bucket_len(rest) };
        len / self.bucket * self.bucket_len(self.bucket) + last
    }

    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
        let (keys, blocks) = (Keys::new(seed), self.bucket.div_ceil(BLOCK));
        let (mut start, mut rest) = (0, to);
        for (number, x) in from.chunks(self.bucket).enumerate() {
            let (to, after) = rest.split_at_mut(self.bucket_len(x.len()));
            let squares = sum_of_squares(x);
            match self.not_finite {
                _ if squares.is_finite() => self.encode_bucket(norm(squares), x, to, keys, number * blocks),
                NotFinite::Refuse => refuse(x, number * self.bucket)?,
                NotFinite::Propagate => self.encode_bucket(f32::NAN, x, to, keys, 0),
                NotFinite::Saturate => {
                    let x: Vec<f32> = x.iter().copied().map(saturated).collect();
                    self.encode_bucket(norm(sum_of_squares(&x)), &x, to, keys, number * blocks);
                }
            }
            (start, rest) = (start + to.len(), after);
        }
        Ok(start)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        self.accumulate(from, weight, false, to)
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        self.accumulate(from, 1.0, true, to)
    }
}

/// The norm that elements are divided by: no element is larger. Where ‖x‖ is no f32 the largest will do.
fn norm(squares: f64) -> f32 {
    let norm = squares.sqrt() as f32;
    norm.min(f32::MAX)
}

/// The distance of levels; rounded down where the last would else be infinite.
fn unit(norm: f32, levels: f32) -> f32 {
    let unit = norm / levels;
    if unit * levels <= f32::MAX || norm.is_nan() { unit } else { unit.next_down() }
}

/// What the draws of each block follow from.
#[derive(Clone, Copy)]
struct Keys(u64);

impl Keys {
    fn new(seed: u64) -> Self {
        Keys(mix(seed))
    }

    fn of(self, block: usize) -> u64 {
        mix(self.0 ^ block as u64)
    }
}
