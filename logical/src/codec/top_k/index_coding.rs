//! Places of the elements that a sparse codec keeps, in few bits: the Elias-Fano code of a sorted list (1974, 1971).
//!
//! ```text
//! place   = low part of l = ⌊log₂(d/k)⌋ bits, high part of the rest
//! high    = a bit string in which bit (place ≫ l) + j is 1 for the j-th place, of k + ⌊(d − 1) ÷ 2^l⌋ bits
//! message = k low parts, the high parts; each from a byte of its own, and zeros to ⌈(bits of both)/8⌉ + 1 bytes, which
//!           grow with d
//! ```
//!
//! Including the low parts, it takes at most 2 + ⌈log₂(d/k)⌉ bits per place, the same for equal d and k: 8.6 at 1 %,
//! where a whole index of 2²⁶ takes 26.

use crate::codec::CodecError;
use hexagram_physical::device::kernels::bits::{Packer, Unpacker, packed_len};

/// Layout of k places among d elements, which determines the sizes of its parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexLayout {
    k: usize,
    /// Size of the low part of a place, in bits.
    low: u32,
    /// Size of the string of high parts, in bits.
    high: usize,
}

impl IndexLayout {
    pub(crate) fn new(k: usize, len: usize) -> Self {
        let Some(low) = len.checked_div(k).and_then(usize::checked_ilog2) else {
            return IndexLayout { k: 0, low: 0, high: 0 };
        };
        IndexLayout { k, low, high: k + ((len - 1) >> low) }
    }

    /// Returns the size in bytes, enough for both parts at any alignment of their last bytes. Without the padding,
    /// more elements could take fewer bytes.
    pub(crate) fn bytes(self) -> usize {
        if self.k == 0 {
            return 0;
        }
        (self.k * self.low as usize + self.high).div_ceil(8) + 1
    }

    /// Returns the size of the low part of a place, in bits.
    #[cfg(feature = "cuda")]
    pub(crate) fn low_bits(self) -> u32 {
        self.low
    }

    /// Returns the size of all low parts, in bytes.
    pub(crate) fn low_bytes(self) -> usize {
        packed_len(self.k, self.low)
    }

    /// Writes k places, in order.
    pub(crate) fn encode(self, places: &[usize], to: &mut [u8]) {
        let (low, high) = to.split_at_mut(self.low_bytes());
        let mut low = Packer::new(low);
        high.fill(0);
        for (number, place) in places.iter().enumerate() {
            low.push(*place as u64 & ((1 << self.low) - 1), self.low);
            let bit = (place >> self.low) + number;
            high[bit / 8] |= 1 << (bit % 8);
        }
        low.finish();
    }

    /// Calls `each` with every place below `len` and its number.
    ///
    /// # Errors
    /// [`CodecError::Damaged`] if the number of places is not k, or they are not in order.
    pub(crate) fn decode(
        self,
        from: &[u8],
        len: usize,
        mut each: impl FnMut(usize, usize),
    ) -> Result<(), CodecError> {
        let (low, high) = from.split_at(self.low_bytes());
        let mut low = Unpacker::new(low);
        let mut ones = Ones::new(high);
        let mut last = None;
        for number in 0..self.k {
            let above = ones.next().and_then(|bit| bit.checked_sub(number));
            let place = above.map(|high| high << self.low | low.pull(self.low) as usize);
            let Some(place) = place.filter(|place| last < Some(*place) && *place < len) else {
                return Err(CodecError::damaged(format!("index {number} of {} is none", self.k)));
            };
            each(number, place);
            last = Some(place);
        }
        match ones.next() {
            None => Ok(()),
            Some(_) => Err(CodecError::damaged(format!("more than {} indices", self.k))),
        }
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
