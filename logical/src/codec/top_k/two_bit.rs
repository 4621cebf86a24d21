//! Numbers in two bits: the index of a bin, and the mean of each bin.
//!
//! ```text
//! μ, σ    = mean and standard deviation of the run
//! bin     = (x − μ) / 1.5σ + 2, rounded to the nearest, ties to even, from 0 to 3; 2 for all if σ = 0
//! x̂       = the mean of the numbers in the bin of x
//! message = mean₀ … mean₃: f32, 0 for an empty bin; then the bins: 2 bits each, the first in the lowest of a byte
//! ```
//!
//! Little endian, and padded to a whole byte: 16 + ⌈k/4⌉ bytes for k numbers. Since x̂ are means, ‖x̂ − x‖² = ‖x‖² −
//! ‖x̂‖². Further, ‖x̂‖² ≥ .32/√k ‖x‖²: the numbers beyond 3σ/4 have at least .43 kσ², are in separate bins on either
//! side, and none is beyond σ√k. If most numbers are near ±t, like the largest of many, the loss is small.
//!
//! Source: the public code of SparseLoCo (`tplr-ai/templar`, 2025): 4 bins over 6σ. It divides by k − 1 for σ, with
//! which two opposite numbers would both be 0.
//!
//! All sums are over pieces of 4096 numbers, one after the other; in a piece, lane i of 64 adds numbers i, i + 64, …,
//! and the lanes are added by halves. A device can reproduce that order, but not one long sequence.

use crate::codec::CodecError;
use crate::codec::shared::not_finite::saturated;
use hexagram_physical::codec::NotFinite;
use hexagram_physical::device::kernels::Float;

/// Number of bins.
const BINS: usize = 4;
/// Size of the bins' means, in bytes.
const MEANS: usize = 4 * BINS;
/// Number of standard deviations that all bins are wide.
const RANGE: f64 = 6.0;

/// Returns the size of a message of `len` numbers, in bytes.
pub(crate) fn bytes(len: usize) -> usize {
    if len == 0 { 0 } else { MEANS + len.div_ceil(4) }
}

/// Number of numbers that are summed up together.
const PIECE: usize = 4096;
/// Number of lanes of a piece's sum.
const WIDE: usize = 64;

/// Writes the message of the numbers.
pub(crate) fn encode(x: &[f32], not_finite: NotFinite, to: &mut [u8]) {
    let saturate = not_finite == NotFinite::Saturate;
    let number = |x: f32| f64::from(if saturate { saturated(x, f32::MAX) } else { x });
    let count = x.len().max(1) as f64;
    let [mean] = sums(x, |[sum], x| *sum += number(x)).map(|sum| sum / count);
    let [square] = sums(x, |[sum], x| *sum += (number(x) - mean).powi(2)).map(|sum| sum / count);
    let width = RANGE * square.sqrt() / BINS as f64;
    let bin = |x: f32| bin((number(x) - mean) / width);
    let (means, bins) = to.split_at_mut(MEANS.min(to.len()));
    for (codes, x) in bins.iter_mut().zip(x.chunks(4)) {
        *codes = x.iter().rev().fold(0, |codes, x| codes << 2 | bin(*x) as u8);
    }
    let totals = sums(x, |lane: &mut [f64; 2 * BINS], x| {
        lane[bin(x)] += number(x);
        lane[BINS + bin(x)] += 1.0;
    });
    let (totals, counts) = totals.split_at(BINS);
    for ((mean, total), count) in means.as_chunks_mut().0.iter_mut().zip(totals).zip(counts) {
        let of_bin = if *count > 0.0 { (total / count) as f32 } else { 0.0 };
        *mean = of_bin.canonical().to_le_bytes();
    }
}

/// Returns the sums to which `add` adds each number, in the order that the module's documentation says.
fn sums<const N: usize>(x: &[f32], add: impl Fn(&mut [f64; N], f32)) -> [f64; N] {
    let mut sums = [0.0; N];
    for piece in x.chunks(PIECE) {
        let mut lanes = [[0.0; N]; WIDE];
        for row in piece.chunks(WIDE) {
            lanes.iter_mut().zip(row).for_each(|(lane, x)| add(lane, *x));
        }
        let of_piece = folded(lanes);
        sums.iter_mut().zip(of_piece).for_each(|(sum, of_piece)| *sum += of_piece);
    }
    sums
}

/// Returns the sums of lanes, added by halves.
fn folded<const N: usize>(mut lanes: [[f64; N]; WIDE]) -> [f64; N] {
    let mut half = WIDE / 2;
    while half > 0 {
        let (sums, others) = lanes.split_at_mut(half);
        for (sum, other) in sums.iter_mut().zip(others) {
            sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += *other);
        }
        half /= 2;
    }
    lanes[0]
}

/// Returns the bin of a number this many widths from the mean; the middle one if the width is 0.
fn bin(widths: f64) -> usize {
    if widths.is_finite() { (widths + 2.0).round_ties_even().clamp(0.0, 3.0) as usize } else { 2 }
}

/// Reads a message.
pub(crate) struct Bins<'a> {
    means: [f32; BINS],
    bins: &'a [u8],
}

impl<'a> Bins<'a> {
    /// Reads the means of a message.
    ///
    /// # Errors
    /// [`CodecError::Damaged`] if they are cut.
    pub(crate) fn new(from: &'a [u8]) -> Result<Self, CodecError> {
        let cut = || CodecError::damaged("its bins are cut");
        let (means, bins) = from.split_first_chunk::<MEANS>().ok_or_else(cut)?;
        Ok(Bins {
            means: bytemuck::pod_read_unaligned::<[[u8; 4]; BINS]>(means).map(f32::from_le_bytes),
            bins,
        })
    }

    /// Returns the number at a place of the run.
    pub(crate) fn number(&self, at: usize) -> f32 {
        self.means[usize::from(self.bins[at / 4] >> (2 * (at % 4)) & 3)]
    }
}
