//! Stochastic rounding to signed levels, packed by bits: the kernels of quantized SGD (QSGD).
//!
//! A level is `ξ ∈ 0..=s`, drawn such that `E ξ = s |x| / ‖x‖`; its code has `1 + ⌈log₂(s + 1)⌉` bits, the sign above
//! the level. Rounding is done in fixed point: `ξ = (⌊|x| · s 2^f / ‖x‖⌋ + r) ≫ f` with r uniform in `0..2^f`.
//!
//! Packed, 512 codes are 32 rows of 16 lanes: lane l of row j is code 16j + l. A lane's codes follow each other from
//! the lowest bit, in words of 32 bits, little endian, and the words of the 16 lanes alternate: every step is a shift
//! of all lanes. Fewer codes than 512 follow each other without lanes.
//!
//! Draws are a function of the key, the row and the lane, the same on every instruction set. The two-round mixing of
//! Wellons (`lowbias32`) seeds the lanes, which go from row to row by Marsaglia's congruential generator 69069, with
//! its high bits. A block draws 32 times; up to that distance the lattice of the generator has no vector shorter than
//! a quarter of the best possible.

use hexagram_physical::device::kernels::bits::{Packer, Unpacker, packed_len};
use hexagram_physical::device::kernels::draw::Keys;
use hexagram_physical::device::kernels::sets::vector::Vectors;
use hexagram_physical::device::kernels::{LANES, WIDE, fold, from_fn};
use hexagram_physical::dispatched;

/// Codes that are packed together.
pub(super) const BLOCK: usize = ROWS * LANES;

const ROWS: usize = 32;
const SIGN: u32 = 1 << 31;

/// Number of levels above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Levels(u32);

impl Default for Levels {
    /// Returns 7 levels: codes of 4 bits.
    fn default() -> Self {
        Levels(7)
    }
}

impl Levels {
    /// The largest number of levels: with more, codes would be hardly shorter than f32.
    pub(super) const MOST: u32 = 1 << 15;

    /// Creates the number if it is in 1 ..= [`Levels::MOST`].
    pub(super) fn new(levels: u32) -> Option<Levels> {
        (1..=Levels::MOST).contains(&levels).then_some(Levels(levels))
    }

    /// Returns the number of levels.
    pub(super) fn count(self) -> u32 {
        self.0
    }

    /// Returns the bits of a code: one for the sign, and those of the largest level.
    pub(super) fn bits(self) -> u32 {
        1 + u32::BITS - self.0.leading_zeros()
    }

    /// Returns the number of bytes that `len` codes take, [`BLOCK`] at most.
    pub(super) fn packed_len(self, len: usize) -> usize {
        packed_len(len, self.bits())
    }

    /// Returns the fractional bits of s |x| / ‖x‖: the maximum for which the largest sum fits 31 bits.
    fn fraction(self) -> u32 {
        31 - self.bits()
    }
}

dispatched!(
    /// Returns ‖x‖₂². It is not finite if and only if an element is not: even the largest squares are far from
    /// overflow.
    pub(super) fn sum_of_squares(x: &[f32]) -> f64 = sum_of_squares_kernel
);

dispatched!(
    /// Encodes buckets of `bucket` elements, one after the other: the norm as f32, little endian, and the packed
    /// blocks, drawn with the keys from `block` on. Stops at a bucket that is not finite, or whose norm is below 2⁻⁶⁴
    /// or beyond f32. Returns the number of buckets written.
    ///
    /// # Panics
    /// If `to` has no room.
    pub(super) fn encode_buckets(
        levels: Levels,
        bucket: usize,
        keys: Keys,
        block: usize,
        x: &[f32],
        to: &mut [u8],
    ) -> usize = encode_buckets_kernel
);

dispatched!(
    /// Packs the levels of at most [`BLOCK`] finite numbers, none larger than `norm`, which is at least 2⁻⁹⁶.
    ///
    /// # Panics
    /// Unless `to` has [`Levels::packed_len`] bytes, and `x` no more than a block of numbers.
    pub(super) fn encode_levels(levels: Levels, norm: f32, key: u64, x: &[f32], to: &mut [u8]) = encode_kernel
);

dispatched!(
    /// Computes `to ← to + weight × unit × level`, or without the first term if `fresh`. Returns false if a level
    /// exceeds the largest.
    ///
    /// # Panics
    /// Panics like [`encode_levels`].
    pub(super) fn decode_levels(
        levels: Levels,
        unit: f32,
        weight: f32,
        fresh: bool,
        from: &[u8],
        to: &mut [f32]
    ) -> bool = decode_kernel
);

/// Sums the squares of blocks in 64 lanes; lane i takes blocks i, i + 64, …
#[inline(always)]
fn sum_of_squares_kernel<S: Vectors>(set: S, x: &[f32]) -> f64 {
    if x.len() <= BLOCK {
        return squares_of_block(set, x);
    }
    let mut lanes = [0.0; WIDE];
    for (number, x) in x.chunks(BLOCK).enumerate() {
        lanes[number % WIDE] += squares_of_block(set, x);
    }
    fold(lanes, |x, y| x + y)
}

/// Sums the squares of a block in single precision, unless a square is too large for it, or all are too small.
#[inline(always)]
fn squares_of_block<S: Vectors>(set: S, x: &[f32]) -> f64 {
    let sum = lanes_of_squares(set, x);
    let exact = (SMALL..=f32::MAX).contains(&sum);
    if exact { f64::from(sum) } else { wide_sum_of_squares(x) }
}

/// A block with less than this is summed in double precision: underflow loses at most 2⁻⁴⁰ of it.
const SMALL: f32 = 1.0 / (1u128 << 100) as f32;

/// Sums squares in four times 16 sums, which are added pairwise.
#[inline(always)]
fn lanes_of_squares<S: Vectors>(set: S, x: &[f32]) -> f32 {
    let zero = set.floats([0.0; LANES]);
    let mut a = zero;
    let mut b = zero;
    let mut c = zero;
    let mut d = zero;
    let (rows, last) = x.as_chunks::<LANES>();
    let (fours, rows) = rows.as_chunks::<4>();
    for [w, x, y, z] in fours {
        a = add_square(set, a, w);
        b = add_square(set, b, x);
        c = add_square(set, c, y);
        d = add_square(set, d, z);
    }
    for x in rows {
        a = add_square(set, a, x);
    }
    if !last.is_empty() {
        let mut row = [0.0; LANES];
        row[..last.len()].copy_from_slice(last);
        b = add_square(set, b, &row);
    }
    let sums = set.to_floats(set.sum(set.sum(a, b), set.sum(c, d)));
    let sums: [f32; 8] = from_fn(|i| sums[i] + sums[i + 8]);
    let sums: [f32; 4] = from_fn(|i| sums[i] + sums[i + 4]);
    (sums[0] + sums[2]) + (sums[1] + sums[3])
}

#[inline(always)]
fn add_square<S: Vectors>(set: S, sum: S::Floats, x: &[f32; LANES]) -> S::Floats {
    let x = set.floats(*x);
    set.sum(sum, set.product(x, x))
}

#[inline(never)]
fn wide_sum_of_squares(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
}

#[inline(always)]
fn encode_buckets_kernel<S: Vectors>(
    set: S,
    levels: Levels,
    bucket: usize,
    keys: Keys,
    block: usize,
    x: &[f32],
    to: &mut [u8],
) -> usize {
    let mut rest = to;
    let mut block = block;
    for (number, x) in x.chunks(bucket).enumerate() {
        let norm = sum_of_squares_kernel(set, x).sqrt() as f32;
        if !(ORDINARY..=f32::MAX).contains(&norm) {
            return number;
        }
        let (head, after) = rest.split_at_mut(size_of::<f32>());
        head.copy_from_slice(&norm.to_le_bytes());
        rest = after;
        for x in x.chunks(BLOCK) {
            let (to, after) = rest.split_at_mut(levels.packed_len(x.len()));
            encode_kernel(set, levels, norm, keys.of(block), x, to);
            rest = after;
            block += 1;
        }
    }
    x.len().div_ceil(bucket)
}

/// Least norm for a plain division of numbers.
const ORDINARY: f32 = 1.0 / (1u128 << 64) as f32;

#[inline(always)]
fn encode_kernel<S: Vectors>(set: S, levels: Levels, norm: f32, key: u64, x: &[f32], to: &mut [u8]) {
    let round = LevelRounding::new(set, levels, norm, key);
    let bits = levels.bits();
    let Ok(x) = <&[f32; BLOCK]>::try_from(x) else {
        let mut packer = Packer::new(to);
        for (number, part) in x.chunks(LANES).enumerate() {
            let mut row = [0.0; LANES];
            row[..part.len()].copy_from_slice(part);
            let codes = set.to_words(round.codes(number, &row));
            codes[..part.len()].iter().for_each(|code| packer.push(u64::from(*code), bits));
        }
        packer.finish();
        return;
    };
    let mut packed = to.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut();
    let mut words = set.words([0; LANES]);
    let mut used = 0;
    for (number, row) in x.as_chunks::<LANES>().0.iter().enumerate() {
        let codes = round.codes(number, row);
        words = set.or(words, set.left(codes, used));
        used += bits;
        if used >= u32::BITS
            && let Some(to) = packed.next()
        {
            *to = bytemuck::cast(set.to_words(words).map(u32::to_le));
            used -= u32::BITS;
            words = set.right(codes, bits - used);
        }
    }
}

/// Constants for rounding the numbers of a block to levels.
struct LevelRounding<S: Vectors> {
    set: S,
    scale: S::Floats,
    limit: S::Floats,
    start: S::Words,
    number: S::Words,
    fraction: u32,
    bits: u32,
}

impl<S: Vectors> LevelRounding<S> {
    #[inline(always)]
    fn new(set: S, levels: Levels, norm: f32, key: u64) -> Self {
        let fraction = levels.fraction();
        let limit = (levels.0 << fraction) as f32;
        let scale = set.floats([limit / norm; LANES]);
        let start = set.words(start(key));
        let limit = set.floats([limit; LANES]);
        let number = set.words([!SIGN; LANES]);
        LevelRounding { set, scale, limit, start, number, fraction, bits: levels.bits() }
    }

    #[inline(always)]
    fn codes(&self, row: usize, x: &[f32; LANES]) -> S::Words {
        let set = self.set;
        let x = set.bits(set.floats(*x));
        let scaled = set.product(set.with_bits(set.and(x, self.number)), self.scale);
        // Even NaN becomes a number that an integer can hold.
        let fixed = set.truncated(set.smaller(scaled, self.limit));
        let state = set.multiply(self.start, set.words([POWERS[row]; LANES]));
        let state = set.add(state, set.words([OFFSETS[row]; LANES]));
        let draw = set.right(state, u32::BITS - self.fraction);
        let level = set.right(set.add(fixed, draw), self.fraction);
        let sign = set.left(set.right(x, u32::BITS - 1), self.bits - 1);
        set.or(level, sign)
    }
}

/// Returns the initial states of the generators of the lanes.
#[inline(always)]
fn start(key: u64) -> [u32; LANES] {
    let low = key as u32;
    let high = (key >> 32) as u32;
    let mut start = [0; LANES];
    for (lane, start) in start.iter_mut().enumerate() {
        let word = (lane as u32).wrapping_mul(0x9e37_79b9) ^ low;
        let word = (word ^ (word >> 16)).wrapping_mul(0x7feb_352d) ^ high;
        let word = (word ^ (word >> 15)).wrapping_mul(0x846c_a68b);
        *start = word ^ (word >> 16);
    }
    start
}

const MULTIPLIER: u32 = 69069;

/// Powers of the multiplier: row j of a lane is `start · POWERS[j] + OFFSETS[j]`, j + 1 steps of the generator.
const POWERS: [u32; ROWS] = steps(0).0;
const OFFSETS: [u32; ROWS] = steps(1).1;

const fn steps(increment: u32) -> ([u32; ROWS], [u32; ROWS]) {
    let mut powers = [MULTIPLIER; ROWS];
    let mut offsets = [increment; ROWS];
    let mut row = 1;
    while row < ROWS {
        powers[row] = powers[row - 1].wrapping_mul(MULTIPLIER);
        offsets[row] = offsets[row - 1].wrapping_mul(MULTIPLIER).wrapping_add(increment);
        row += 1;
    }
    (powers, offsets)
}

#[inline(always)]
fn decode_kernel<S: Vectors>(
    set: S,
    levels: Levels,
    unit: f32,
    weight: f32,
    fresh: bool,
    from: &[u8],
    to: &mut [f32],
) -> bool {
    let mut sum = Sum::new(set, levels, unit, weight, fresh);
    match <&mut [f32; BLOCK]>::try_from(&mut *to) {
        Ok(to) => sum.add_block(from, to),
        Err(_) => sum.add_part(from, to),
    }
    set.to_words(sum.largest).iter().all(|level| *level <= levels.0)
}

/// Constants for adding the levels of a block, and the largest levels.
struct Sum<S: Vectors> {
    set: S,
    unit: S::Floats,
    weight: S::Floats,
    level: S::Words,
    sign: S::Words,
    bits: u32,
    fresh: bool,
    /// The largest levels so far.
    largest: S::Words,
}

impl<S: Vectors> Sum<S> {
    #[inline(always)]
    fn new(set: S, levels: Levels, unit: f32, weight: f32, fresh: bool) -> Self {
        let unit = set.floats([unit; LANES]);
        let weight = set.floats([weight; LANES]);
        let level = set.words([(1 << (levels.bits() - 1)) - 1; LANES]);
        let sign = set.words([SIGN; LANES]);
        let largest = set.words([0; LANES]);
        Sum { set, unit, weight, level, sign, bits: levels.bits(), fresh, largest }
    }

    /// Adds the values of a whole block of packed levels.
    #[inline(always)]
    fn add_block(&mut self, from: &[u8], to: &mut [f32; BLOCK]) {
        let set = self.set;
        let bits = self.bits;
        let mut packed = from.as_chunks::<{ 4 * LANES }>().0.iter();
        let mut words = set.words([0; LANES]);
        let mut left = 0;
        for to in to.as_chunks_mut::<LANES>().0 {
            let mut codes = words;
            if left < bits {
                let next: [u32; LANES] = packed.next().map_or([0; LANES], |next| bytemuck::cast(*next));
                words = set.words(next.map(u32::from_le));
                codes = set.or(codes, set.left(words, left));
                words = set.right(words, bits - left);
                left += u32::BITS;
            } else {
                words = set.right(words, bits);
            }
            left -= bits;
            self.add(codes, to);
        }
    }

    /// Adds the values of packed levels of an incomplete block.
    #[inline(always)]
    fn add_part(&mut self, from: &[u8], to: &mut [f32]) {
        let mut unpacker = Unpacker::new(from);
        for to in to.chunks_mut(LANES) {
            let mut codes = [0; LANES];
            let mut row = [0.0; LANES];
            codes[..to.len()].fill_with(|| unpacker.pull(self.bits) as u32);
            row[..to.len()].copy_from_slice(to);
            self.add(self.set.words(codes), &mut row);
            to.copy_from_slice(&row[..to.len()]);
        }
    }

    /// Adds the values of the lowest bits of the lanes; other bits are ignored.
    #[inline(always)]
    fn add(&mut self, codes: S::Words, to: &mut [f32; LANES]) {
        let set = self.set;
        let level = set.and(codes, self.level);
        self.largest = set.larger(self.largest, level);
        let size = set.bits(set.product(set.converted(level), self.unit));
        let sign = set.and(set.left(codes, u32::BITS - self.bits), self.sign);
        let value = set.product(set.with_bits(set.or(size, sign)), self.weight);
        let sum = if self.fresh { value } else { set.sum(set.floats(*to), value) };
        *to = set.to_floats(set.canonical(sum));
    }
}

#[cfg(test)]
mod tests;
