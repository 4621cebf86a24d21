//! The message of DeMo: the largest coefficients of each block, which the receiver adds up and counts.
//!
//! ```text
//! runs of 2d numbers: d coefficients, and the number of senders of each        (the latter is not read)
//! message = entry …, block by block, in the order of indices
//! entry   = index within the block as u16, value as f32; little-endian
//! ```

use hexagram_logical::codec::{Codec, CodecError, Noise, Properties};
use hexagram_logical::hash;
use std::cmp::Reverse;
use std::ops::Range;

/// Size of an entry, in bytes.
const ENTRY: usize = 6;

/// Codec that keeps the largest coefficients of every block; of equally large ones, those of lower indices.
#[derive(Debug)]
pub(super) struct LargestOfEach {
    keep: usize,
    blocks: Vec<Range<usize>>,
}

impl LargestOfEach {
    pub(super) fn new(keep: usize, blocks: Vec<Range<usize>>) -> Self {
        LargestOfEach { keep, blocks }
    }

    /// Returns the number of coefficients of all blocks.
    fn len(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.end)
    }

    fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| ENTRY * self.keep.min(block.len())).sum()
    }

    fn expect(what: &str, found: usize, expected: usize) -> Result<(), CodecError> {
        if found == expected {
            return Ok(());
        }
        Err(CodecError::damaged(format!("{found} {what}, not {expected}")))
    }
}

impl Codec for LargestOfEach {
    fn name(&self) -> String {
        let ends = self.blocks.iter().map(|block| block.end as u64);
        let shape = ends.fold(0, hash::step);
        format!("largest({} of each of {} blocks, cut as {shape:x})", self.keep, self.blocks.len())
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: false, contraction: None, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, _: usize) -> usize {
        self.bytes()
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        Self::expect("numbers", from.len(), 2 * self.len())?;
        let mut entries = to.chunks_exact_mut(ENTRY);
        for block in &self.blocks {
            let coefficients = &from[block.clone()];
            if let Some(at) = coefficients.iter().position(|x| !x.is_finite()) {
                return Err(CodecError::NotFinite { index: block.start + at, value: coefficients[at] });
            }
            for (index, entry) in largest(coefficients, self.keep).into_iter().zip(&mut entries) {
                entry[..2].copy_from_slice(&index.to_le_bytes());
                entry[2..].copy_from_slice(&coefficients[usize::from(index)].to_le_bytes());
            }
        }
        Ok(self.bytes())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        Self::expect("numbers", to.len(), 2 * self.len())?;
        Self::expect("bytes", from.len(), self.bytes())?;
        let (coefficients, senders) = to.split_at_mut(self.len());
        let mut entries = from.as_chunks::<ENTRY>().0.iter();
        for block in &self.blocks {
            for [low, high, value @ ..] in entries.by_ref().take(self.keep.min(block.len())) {
                let index = u16::from_le_bytes([*low, *high]);
                if usize::from(index) >= block.len() {
                    return Err(CodecError::damaged(format!("{index} in a block of {}", block.len())));
                }
                let at = block.start + usize::from(index);
                coefficients[at] += weight * f32::from_le_bytes(*value);
                senders[at] += weight;
            }
        }
        Ok(())
    }
}

/// Returns the indices of the `keep` largest numbers, in order.
fn largest(numbers: &[f32], keep: usize) -> Vec<u16> {
    let mut indices: Vec<u16> = (0..=u16::MAX).take(numbers.len()).collect();
    if keep < indices.len() {
        let rank = |index: &u16| (Reverse(numbers[usize::from(*index)].abs().to_bits()), *index);
        indices.select_nth_unstable_by_key(keep, rank);
        indices.truncate(keep);
        indices.sort_unstable();
    }
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_keeps_its_largest_and_counts_them() {
        let codec = LargestOfEach::new(2, vec![0..4, 4..5, 5..8]);
        let mut run = vec![1.0, -3.0, 3.0, 2.0, 0.5, 1.0, -1.0, 1.0];
        run.extend([9.0; 8]);
        let mut message = vec![0; codec.encoded_len(16)];
        assert_eq!(codec.encode(&run, &mut message, 0).unwrap(), 5 * ENTRY);
        let mut sum = vec![0.0; 16];
        codec.decode_add(&message, 2.0, &mut sum).unwrap();
        assert_eq!(sum[..8], [0.0, -6.0, 6.0, 0.0, 1.0, 2.0, -2.0, 0.0]);
        assert_eq!(sum[8..], [0.0, 2.0, 2.0, 0.0, 2.0, 2.0, 2.0, 0.0]);
    }

    #[test]
    fn damage_and_nan_are_noticed() {
        let codec = LargestOfEach::new(1, vec![0..3, 3..4]);
        let mut message = vec![0; 2 * ENTRY];
        let mut sum = vec![0.0; 8];
        let mut run = [0.0; 8];
        run[1] = f32::NAN;
        let nan = codec.encode(&run, &mut message, 0).unwrap_err();
        assert!(matches!(nan, CodecError::NotFinite { index: 1, .. }), "{nan}");
        let outside = [[3, 0, 0, 0, 0, 0], [0; 6]].concat();
        for damaged in [&outside[..], &[0, 0, 0], &[0; 18]] {
            codec.decode_add(damaged, 1.0, &mut sum).unwrap_err();
        }
    }
}
