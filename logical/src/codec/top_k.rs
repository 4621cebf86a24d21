//! Top-k: the k elements of the largest magnitude, exactly; the rest counts as 0 (Aji and Heafield 2017; Stich et al. 2018).
//! Where magnitudes are equal, the lower index comes first.
//!
//! ```text
//! C(x)_i = x_i if |x_i| is among the k largest, else 0        ‖C(x) − x‖² ≤ (1 − k/d) ‖x‖²
//!
//! message = k values as f32 in the order of indices, k low parts, the high parts; each part from a byte of its own,
//!           and zeros to ⌈(bits of both)/8⌉ + 1 bytes, which grow with d
//! index   = low part of l = ⌊log₂(d/k)⌋ bits, high part of the rest
//! high    = a bit string in which bit (index ≫ l) + j is 1 for the j-th index, of k + ⌊(d − 1) ÷ 2^l⌋ bits
//! ```
//!
//! The bit string is Elias' and Fano's code of a sorted list (1974, 1971): with the low parts it takes at most
//! 2 + ⌈log₂(d/k)⌉ bits an index, always as many for the same d and k; at 1 % 8.6, where a whole index of 2²⁶ takes 26.
//!
//! Selection reads the input once: elements that reach the threshold are candidates. The threshold begins with a guess
//! from a sample; whenever there are twice as many candidates as wanted it rises to the k-th of them; if the guess was
//! too high, all is done again without one. So the result never depends on the sample.

use super::named::{Kept, not_finite_field};
use super::not_finite::saturated;
use super::selection::Selection;
use super::{Codec, CodecError, Keep, Noise, NotFinite, Properties};
use crate::spelling::{Options, Spelled};
use hexagram_physical::Result;
use hexagram_physical::device::kernels::Float;
use hexagram_physical::device::kernels::bits::{Packer, Unpacker, packed_len};
use std::sync::Arc;

/// Codec that keeps the largest elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopK {
    keep: Keep,
    not_finite: NotFinite,
}

impl TopK {
    /// Creates a codec that keeps `keep` elements, and refuses NaN and infinity.
    ///
    /// # Errors
    /// [`hexagram_physical::Error::Usage`] if nothing is kept.
    pub fn new(keep: Keep) -> Result<Self> {
        Ok(TopK { keep: keep.checked()?, not_finite: NotFinite::default() })
    }

    /// Sets the treatment of NaN and infinity. They propagate as what they are, and before all other elements; of
    /// more than k, k propagate.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        TopK { not_finite, ..self }
    }
}

impl Default for TopK {
    /// Returns the codec that keeps 1 % of the elements.
    fn default() -> Self {
        TopK { keep: Keep::Ratio(0.01), not_finite: NotFinite::default() }
    }
}

impl Spelled for TopK {
    fn word(&self) -> &'static str {
        "top-k"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.main("keep", &mut self.keep, Kept, "elements that are kept")?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for TopK {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn properties(&self) -> Properties {
        let contraction = self.keep.contraction();
        Properties { unbiased: false, contraction, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        Layout::new(self.keep.of(len), len).bytes()
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(*self))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        let layout = Layout::new(self.keep.of(from.len()), from.len());
        let to = &mut to[..layout.bytes()];
        let (values, rest) = to.split_at_mut(4 * layout.k);
        let (low, high) = rest.split_at_mut(packed_len(layout.k, layout.low));
        let mut low = Packer::new(low);
        high.fill(0);
        let chosen = Selection::new(layout.k, self.not_finite).choose(from)?;
        for (number, (index, value)) in chosen.zip(values.as_chunks_mut().0).enumerate() {
            *value = match self.not_finite {
                NotFinite::Saturate => saturated(from[index], f32::MAX).to_le_bytes(),
                _ => from[index].to_le_bytes(),
            };
            low.push(index as u64 & ((1 << layout.low) - 1), layout.low);
            let bit = (index >> layout.low) + number;
            high[bit / 8] |= 1 << (bit % 8);
        }
        low.finish();
        Ok(layout.bytes())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        let layout = Layout::new(self.keep.of(to.len()), to.len());
        if from.len() != layout.bytes() {
            return Err(CodecError::damaged(format!("{} bytes, not {}", from.len(), layout.bytes())));
        }
        let (values, rest) = from.split_at(4 * layout.k);
        let (low, high) = rest.split_at(packed_len(layout.k, layout.low));
        let mut low = Unpacker::new(low);
        let mut ones = Ones::new(high);
        let mut last = None;
        for (number, value) in values.as_chunks().0.iter().enumerate() {
            let above = ones.next().and_then(|bit| bit.checked_sub(number));
            let index = above.map(|high| high << layout.low | low.pull(layout.low) as usize);
            let Some((index, x)) = index.filter(|i| last < Some(*i)).and_then(|i| Some((i, to.get_mut(i)?)))
            else {
                return Err(CodecError::damaged(format!("index {number} of {} is none", layout.k)));
            };
            *x = (*x + weight * f32::from_le_bytes(*value)).canonical();
            last = Some(index);
        }
        match ones.next() {
            None => Ok(()),
            Some(_) => Err(CodecError::damaged(format!("more than {} indices", layout.k))),
        }
    }
}

/// Layout of a message, from which the sizes of its parts follow.
#[derive(Debug, Clone, Copy)]
struct Layout {
    k: usize,
    /// Size of an index' low part, in bits.
    low: u32,
    /// Size of the string of high parts, in bits.
    high: usize,
}

impl Layout {
    fn new(k: usize, len: usize) -> Self {
        let Some(low) = len.checked_div(k).and_then(usize::checked_ilog2) else {
            return Layout { k: 0, low: 0, high: 0 };
        };
        Layout { k, low, high: k + ((len - 1) >> low) }
    }

    /// Returns the size in bytes: enough for both parts, wherever their last bytes end: without the padding, more
    /// elements could take fewer bytes.
    fn bytes(self) -> usize {
        if self.k == 0 {
            return 0;
        }
        4 * self.k + (self.k * self.low as usize + self.high).div_ceil(8) + 1
    }
}

/// Positions of the ones in a string of bits, in order.
struct Ones<'a> {
    from: std::slice::Chunks<'a, u8>,
    word: u64,
    base: usize,
}

impl<'a> Ones<'a> {
    fn new(from: &'a [u8]) -> Self {
        Ones { from: from.chunks(8), word: 0, base: 0usize.wrapping_sub(64) }
    }
}

impl Iterator for Ones<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.word == 0 {
            let bytes = self.from.next()?;
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.word = u64::from_le_bytes(word);
            self.base = self.base.wrapping_add(64);
        }
        let bit = self.word.trailing_zeros() as usize;
        self.word &= self.word - 1;
        Some(self.base + bit)
    }
}
