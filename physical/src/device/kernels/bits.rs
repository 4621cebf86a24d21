//! Numbers of any bit width, packed into bytes, the lowest bit first.

/// Returns the number of bytes of `count` numbers of `width` bits.
pub const fn packed_len(count: usize, width: u32) -> usize {
    // 8 numbers take `width` bytes; this overflows only if the numbers themselves would.
    count / 8 * width as usize + (count % 8 * width as usize).div_ceil(8)
}

/// Packs numbers into bytes.
#[derive(Debug)]
pub struct Packer<'a> {
    to: &'a mut [u8],
    at: usize,
    held: u64,
    bits: u32,
}

impl<'a> Packer<'a> {
    /// Creates one that begins at the first byte.
    pub fn new(to: &'a mut [u8]) -> Self {
        Packer { to, at: 0, held: 0, bits: 0 }
    }

    /// Appends the low `width` bits of a number, at most 56; its other bits must be zero. Overwrites up to 8 bytes
    /// from the start of the number.
    ///
    /// # Panics
    /// If the buffer is full.
    #[inline(always)]
    pub fn push(&mut self, number: u64, width: u32) {
        debug_assert!(width <= 56 && number >> width == 0);
        self.held |= number << self.bits;
        self.bits += width;
        let whole = self.bits / 8;
        let bytes = self.held.to_le_bytes();
        match self.to[self.at..].first_chunk_mut() {
            // The bytes after the whole ones are written again.
            Some(to) => *to = bytes,
            None => self.to[self.at..][..whole as usize].copy_from_slice(&bytes[..whole as usize]),
        }
        self.at += whole as usize;
        self.held >>= 8 * whole;
        self.bits %= 8;
    }

    /// Writes the rest of the last byte, and returns the total number of bytes.
    ///
    /// # Panics
    /// If the buffer is full.
    pub fn finish(self) -> usize {
        if self.bits == 0 {
            return self.at;
        }
        self.to[self.at] = self.held as u8;
        self.at + 1
    }
}

/// Reads the numbers of a [`Packer`]. Beyond the end, it reads zeros.
#[derive(Debug)]
pub struct Unpacker<'a> {
    from: &'a [u8],
    held: u64,
    bits: u32,
}

impl<'a> Unpacker<'a> {
    /// Creates one that begins at the first byte.
    pub fn new(from: &'a [u8]) -> Self {
        Unpacker { from, held: 0, bits: 0 }
    }

    /// Reads the next number, of `width` bits, at most 56.
    #[inline(always)]
    pub fn pull(&mut self, width: u32) -> u64 {
        while self.bits < width {
            let (byte, rest) = self.from.split_first().unwrap_or((&0, &[]));
            self.held |= u64::from(*byte) << self.bits;
            self.from = rest;
            self.bits += 8;
        }
        let number = self.held & ((1 << width) - 1);
        self.held >>= width;
        self.bits -= width;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width_come_back() {
        for width in 0..=56 {
            for count in 0..40 {
                let numbers: Vec<u64> =
                    (0..count).map(|i| (i + 1u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1).collect();
                let numbers: Vec<u64> = numbers.iter().map(|x| x & ((1 << width) - 1)).collect();
                let mut bytes = vec![0; packed_len(numbers.len(), width)];
                let mut packer = Packer::new(&mut bytes);
                numbers.iter().for_each(|x| packer.push(*x, width));
                assert_eq!(packer.finish(), packed_len(numbers.len(), width));
                let mut unpacker = Unpacker::new(&bytes);
                let back: Vec<u64> = numbers.iter().map(|_| unpacker.pull(width)).collect();
                assert_eq!(back, numbers, "{count} of {width} bits");
            }
        }
    }

    #[test]
    fn sizes_of_huge_runs_do_not_overflow() {
        assert_eq!(packed_len((1 << 58) + 1, 17), (17 << 55) + 3);
    }
}
