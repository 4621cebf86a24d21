//! Stochastic rounding to signed levels, packed by bits: what quantized SGD (QSGD) is made of.
//!
//! A level is `ξ ∈ 0..=s`, drawn such that `E ξ = s |x| / ‖x‖`; its code has `1 + ⌈log₂(s + 1)⌉` bits, the sign above the
//! level. Rounding is done in fixed point: `ξ = (⌊|x| · s 2^f / ‖x‖⌋ + r) ≫ f` with r uniform in `0..2^f`.
//!
//! Packed, 512 codes are 32 rows of 16 lanes, and lane l of row j is code 16j + l. As the width of a code is a sum of
//! powers of two, so are its bits split into planes, the widest, which has the lowest bits, first. In a plane of w bits,
//! a lane's 32 numbers follow each other in w words of 32 bits, from the lowest bit, and the words of the 16 lanes
//! alternate: every step of a lane is a shift. Fewer codes than 512 just follow each other.
//!
//! Draws are a function of the key, the row and the lane, the same on every instruction set: lanes begin where Wellons'
//! two-round mixing (`lowbias32`) takes them, and go from row to row by Marsaglia's congruential generator 69069, of which
//! the high bits are used. A block draws 32 times; up to that distance the generator's lattice has no vector shorter
//! than a quarter of the best possible.

use super::bits::{Packer, Unpacker, packed_len};
use super::{LANES, Set};

/// Codes that are packed together.
pub const BLOCK: usize = ROWS * LANES;

const ROWS: usize = 32;
/// Bytes of one word of all lanes.
const WORDS: usize = 4 * LANES;
const SIGN: u32 = 1 << 31;

/// How many levels there are above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels(u32);

impl Levels {
    /// The largest number of levels: with more, codes would be hardly shorter than f32.
    pub const MOST: u32 = 1 << 15;

    /// So many levels, from 1 to [`Levels::MOST`].
    pub fn new(levels: u32) -> Option<Levels> {
        (1..=Levels::MOST).contains(&levels).then_some(Levels(levels))
    }

    /// How many there are.
    pub fn count(self) -> u32 {
        self.0
    }

    /// Bits of a code: one for the sign, and as many as the largest level needs.
    pub fn bits(self) -> u32 {
        1 + u32::BITS - self.0.leading_zeros()
    }

    /// Bytes of `len` codes, of [`BLOCK`] at most.
    pub fn packed_len(self, len: usize) -> usize {
        packed_len(len, self.bits())
    }

    /// Bits after the point of s |x| / ‖x‖: as many as let the largest sum fit 31 bits.
    fn fraction(self) -> u32 {
        31 - self.bits()
    }
}

dispatched!(
    /// ‖x‖₂². Not finite if and only if an element is not: even the largest squares are far from overflow.
    pub fn sum_of_squares(x: &[f32]) -> f64 = sum_of_squares_kernel
);

dispatched!(
    /// Packs the levels of at most [`BLOCK`] finite numbers, none larger than `norm`, which is at least 2⁻⁹⁶.
    ///
    /// # Panics
    /// Unless `to` has [`Levels::packed_len`] bytes, and `x` no more than a block of numbers.
    pub fn encode_levels(levels: Levels, norm: f32, key: u64, x: &[f32], to: &mut [u8]) = encode_kernel
);

dispatched!(
    /// `to ← to + weight × unit × level`, or without the first term if `fresh`; false if a level exceeds the largest.
    ///
    /// # Panics
    /// As [`encode_levels`].
    pub fn decode_levels(
        levels: Levels,
        unit: f32,
        weight: f32,
        fresh: bool,
        from: &[u8],
        to: &mut [f32]
    ) -> bool = decode_kernel
);

/// Single precision will do where no square is too large for it, nor all of them too small to matter.
#[inline(always)]
fn sum_of_squares_kernel<S: Set>(_: S, x: &[f32]) -> f64 {
    let sum = |x: &[f32]| {
        let sum = lanes_of_squares(x);
        if (SMALL..=f32::MAX).contains(&sum) { f64::from(sum) } else { wide_sum_of_squares(x) }
    };
    x.chunks(BLOCK).map(sum).sum()
}

/// A block with less than this is summed up in double precision: what underflows is 2⁻⁴⁰ of it at most.
const SMALL: f32 = 1.0 / (1u128 << 100) as f32;

/// 64 sums, added pairwise.
#[inline(always)]
fn lanes_of_squares(x: &[f32]) -> f32 {
    let (mut a, mut b, mut c, mut d) = ([0.0; LANES], [0.0; LANES], [0.0; LANES], [0.0; LANES]);
    let mut rows = x.as_chunks::<LANES>().0.chunks_exact(4);
    for row in rows.by_ref() {
        add_squares(&row[0], &mut a);
        add_squares(&row[1], &mut b);
        add_squares(&row[2], &mut c);
        add_squares(&row[3], &mut d);
    }
    for row in rows.remainder() {
        add_squares(row, &mut a);
    }
    for (x, sum) in x.as_chunks::<LANES>().1.iter().zip(&mut b) {
        *sum += x * x;
    }
    for lane in 0..LANES {
        a[lane] = (a[lane] + b[lane]) + (c[lane] + d[lane]);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            a[lane] += a[lane + half];
        }
    }
    a[0]
}

#[inline(always)]
fn add_squares(x: &[f32; LANES], sums: &mut [f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] += x[lane] * x[lane];
    }
}

#[inline(never)]
fn wide_sum_of_squares(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
}

#[inline(always)]
fn encode_kernel<S: Set>(_: S, levels: Levels, norm: f32, key: u64, x: &[f32], to: &mut [u8]) {
    let round = Round::new(levels, norm, key);
    match <&[f32; BLOCK]>::try_from(x) {
        Ok(x) => {
            let mut codes = [[0u32; LANES]; ROWS];
            for (row, x) in x.as_chunks::<LANES>().0.iter().enumerate() {
                codes[row] = round.codes(row, x);
            }
            pack(levels.bits(), &codes, to);
        }
        Err(_) => {
            let mut packer = Packer::new(to);
            for (number, part) in x.chunks(LANES).enumerate() {
                let mut row = [0.0; LANES];
                row[..part.len()].copy_from_slice(part);
                let codes = round.codes(number, &row);
                codes[..part.len()].iter().for_each(|code| packer.push(u64::from(*code), levels.bits()));
            }
            packer.finish();
        }
    }
}

/// Packs all planes of the codes.
#[inline(always)]
fn pack(bits: u32, codes: &[[u32; LANES]; ROWS], mut to: &mut [u8]) {
    let mut offset = 0;
    for width in widths(bits) {
        let plane = to.split_off_mut(..width as usize * WORDS).unwrap_or_default();
        match width {
            16 => pack_plane::<16>(offset, codes, plane),
            8 => pack_plane::<8>(offset, codes, plane),
            4 => pack_plane::<4>(offset, codes, plane),
            2 => pack_plane::<2>(offset, codes, plane),
            _ => pack_plane::<1>(offset, codes, plane),
        }
        offset += width;
    }
}

/// The widths of planes, the widest first.
#[inline(always)]
fn widths(bits: u32) -> impl Iterator<Item = u32> {
    [16, 8, 4, 2, 1].into_iter().filter(move |width| bits & width != 0)
}

/// Packs the `WIDTH` bits from `offset` on of all codes.
#[inline(always)]
fn pack_plane<const WIDTH: usize>(offset: u32, codes: &[[u32; LANES]; ROWS], to: &mut [u8]) {
    for (codes, to) in codes.chunks_exact(32 / WIDTH).zip(to.as_chunks_mut::<WORDS>().0) {
        let mut words = [0u32; LANES];
        for lane in 0..LANES {
            let mut word = 0;
            for (number, codes) in codes.iter().enumerate() {
                word |= ((codes[lane] >> offset) & (u32::MAX >> (32 - WIDTH))) << (number * WIDTH);
            }
            words[lane] = word;
        }
        *to = bytemuck::cast(words.map(u32::to_le));
    }
}

/// What rounding a block needs.
struct Round {
    scale: f32,
    limit: f32,
    fraction: u32,
    bits: u32,
    start: [u32; LANES],
}

impl Round {
    #[inline(always)]
    fn new(levels: Levels, norm: f32, key: u64) -> Round {
        let fraction = levels.fraction();
        let limit = (levels.0 << fraction) as f32;
        Round { scale: limit / norm, limit, fraction, bits: levels.bits(), start: start(key) }
    }

    #[inline(always)]
    fn codes(&self, row: usize, x: &[f32; LANES]) -> [u32; LANES] {
        let mut codes = [0; LANES];
        for lane in 0..LANES {
            let scaled = x[lane].abs() * self.scale;
            let scaled = if scaled < self.limit { scaled } else { self.limit };
            // SAFETY: 0 ≤ scaled ≤ limit ≤ 2³⁰; the comparison has turned NaN into the limit.
            let fixed = unsafe { scaled.to_int_unchecked::<i32>() } as u32;
            let draw = self.start[lane].wrapping_mul(POWERS[row]).wrapping_add(OFFSETS[row]);
            let level = (fixed + (draw >> (u32::BITS - self.fraction))) >> self.fraction;
            codes[lane] = level | (x[lane].to_bits() & SIGN) >> (u32::BITS - self.bits);
        }
        codes
    }
}

/// Where the lanes' generators begin.
#[inline(always)]
fn start(key: u64) -> [u32; LANES] {
    let (low, high) = (key as u32, (key >> 32) as u32);
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
    let (mut powers, mut offsets) = ([MULTIPLIER; ROWS], [increment; ROWS]);
    let mut row = 1;
    while row < ROWS {
        powers[row] = powers[row - 1].wrapping_mul(MULTIPLIER);
        offsets[row] = offsets[row - 1].wrapping_mul(MULTIPLIER).wrapping_add(increment);
        row += 1;
    }
    (powers, offsets)
}

#[inline(always)]
fn decode_kernel<S: Set>(
    _: S,
    levels: Levels,
    unit: f32,
    weight: f32,
    fresh: bool,
    from: &[u8],
    to: &mut [f32],
) -> bool {
    let bits = levels.bits();
    let add = |code: u32, to: &mut f32| {
        let level = code & (u32::MAX >> (u32::BITS - bits + 1));
        let sign = (code << (u32::BITS - bits)) & SIGN;
        let value = f32::from_bits((level as i32 as f32 * unit).to_bits() ^ sign) * weight;
        *to = if fresh { value } else { *to + value };
        level
    };
    let mut largest = [0u32; LANES];
    match <&mut [f32; BLOCK]>::try_from(&mut *to) {
        Ok(to) => {
            let codes = unpack(bits, from);
            for (codes, row) in codes.iter().zip(to.as_chunks_mut::<LANES>().0) {
                for lane in 0..LANES {
                    let level = add(codes[lane], &mut row[lane]);
                    largest[lane] = largest[lane].max(level);
                }
            }
        }
        Err(_) => {
            let mut unpacker = Unpacker::new(from);
            to.iter_mut().for_each(|x| largest[0] = largest[0].max(add(unpacker.pull(bits) as u32, x)));
        }
    }
    largest.iter().all(|level| *level <= levels.0)
}

/// The codes of all planes.
#[inline(always)]
fn unpack(bits: u32, mut from: &[u8]) -> [[u32; LANES]; ROWS] {
    let (mut codes, mut offset) = ([[0; LANES]; ROWS], 0);
    for width in widths(bits) {
        let plane = from.split_off(..width as usize * WORDS).unwrap_or_default();
        match width {
            16 => unpack_plane::<16>(offset, plane, &mut codes),
            8 => unpack_plane::<8>(offset, plane, &mut codes),
            4 => unpack_plane::<4>(offset, plane, &mut codes),
            2 => unpack_plane::<2>(offset, plane, &mut codes),
            _ => unpack_plane::<1>(offset, plane, &mut codes),
        }
        offset += width;
    }
    codes
}

#[inline(always)]
fn unpack_plane<const WIDTH: usize>(offset: u32, from: &[u8], codes: &mut [[u32; LANES]; ROWS]) {
    for (codes, words) in codes.chunks_exact_mut(32 / WIDTH).zip(from.as_chunks::<WORDS>().0) {
        let words: [u32; LANES] = bytemuck::cast(*words);
        for lane in 0..LANES {
            for (number, codes) in codes.iter_mut().enumerate() {
                let word = u32::from_le(words[lane]) >> (number * WIDTH);
                codes[lane] |= (word & (u32::MAX >> (32 - WIDTH))) << offset;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{bits, finite, numbers, plain};
    use super::*;

    const KEY: u64 = 0x0123_4567_89ab_cdef;

    /// The code of one element, drawn step by step.
    fn code(levels: Levels, norm: f32, index: usize, x: f32) -> u64 {
        let mut state = start(KEY)[index % LANES];
        for _ in 0..=index / LANES {
            state = state.wrapping_mul(69069).wrapping_add(1);
        }
        let fraction = 31 - levels.bits();
        let largest = (levels.count() << fraction) as f32;
        let fixed = (x.abs() * (largest / norm)).min(largest) as u64;
        let level = (fixed + u64::from(state >> (32 - fraction))) >> fraction;
        level | u64::from(x.is_sign_negative()) << (levels.bits() - 1)
    }

    /// The message, bit by bit.
    fn packed(levels: Levels, norm: f32, x: &[f32]) -> Vec<u8> {
        let (bits, mut to) = (levels.bits(), vec![0; levels.packed_len(x.len())]);
        for index in 0..x.len() {
            let code = code(levels, norm, index, x[index]);
            for bit in 0..bits {
                let in_line = index as u32 * bits + bit;
                let at = if x.len() == BLOCK { planes(bits, index, bit) } else { in_line };
                to[at as usize / 8] |= ((code >> bit & 1) as u8) << (at % 8);
            }
        }
        to
    }

    /// Where a bit of a code is in a block.
    fn planes(bits: u32, index: usize, bit: u32) -> u32 {
        let (row, lane) = ((index / LANES) as u32, (index % LANES) as u32);
        let (mut width, mut before) = (16, 0);
        loop {
            if bits & width != 0 {
                if bit < before + width {
                    break;
                }
                before += width;
            }
            width /= 2;
        }
        let in_lane = row * width + bit - before;
        before * BLOCK as u32 + in_lane / 32 * 512 + lane * 32 + in_lane % 32
    }

    #[test]
    fn levels_agree_with_a_loop() {
        each_set(|set| {
            for levels in
                [1, 2, 4, 7, 100, 127, 1000, Levels::MOST].map(|levels| Levels::new(levels).unwrap())
            {
                for len in (0..300).step_by(7).chain(496..=512) {
                    let x: Vec<f32> = finite(len, 1).iter().map(|x| x * 1e-20).collect();
                    let norm =
                        (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32).max(1e-20);
                    let mut message = vec![0xa5; levels.packed_len(len)];
                    encode_levels(levels, norm, KEY, &x, &mut message);
                    assert_eq!(message, packed(levels, norm, &x), "{set}, {levels:?}, length {len}");

                    let (unit, before) = (norm / levels.count() as f32, numbers(len, 2));
                    let decoded = |index: usize| {
                        let code = code(levels, norm, index, x[index]) as u32;
                        let level = code & ((1 << (levels.bits() - 1)) - 1);
                        let value = level as f32 * unit;
                        if level == code { value } else { -value }
                    };
                    for fresh in [false, true] {
                        let mut to = before.clone();
                        assert!(decode_levels(levels, unit, 0.3, fresh, &message, &mut to));
                        let old = |index: usize| if fresh { 0.0 } else { before[index] };
                        let want: Vec<f32> = (0..len).map(|i| old(i) + decoded(i) * 0.3).collect();
                        let zero = |x: &[f32]| bits(&x.iter().map(|x| x + 0.0).collect::<Vec<f32>>());
                        assert_eq!(zero(&to), zero(&want), "{set}, {levels:?}, length {len}");
                    }
                }
            }
        });
    }

    #[test]
    fn levels_beyond_the_largest_are_noticed() {
        let levels = Levels::new(6).unwrap();
        for len in [5, BLOCK] {
            let message = vec![0xff; levels.packed_len(len)];
            assert!(!decode_levels(levels, 1.0, 1.0, true, &message, &mut vec![0.0; len]));
        }
    }

    #[test]
    fn sums_of_squares_agree_with_a_loop_and_among_sets() {
        let mut first: Vec<f64> = Vec::new();
        each_set(|set| {
            let mut sums = Vec::new();
            for len in (0..300).chain([512, 513, 1024, 5000]) {
                for scale in [1.0, 1e-30, 1e-42, 1e25] {
                    let x: Vec<f32> = plain(len, 1).iter().map(|x| x * scale).collect();
                    let want: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                    let sum = sum_of_squares(&x);
                    assert!((sum - want).abs() <= 1e-6 * want, "{set}, length {len}: {sum}, not {want}");
                    sums.push(sum);
                }
                let (x, finite) = (numbers(len, 3), finite(len, 3));
                assert_eq!(sum_of_squares(&x).is_finite(), x.iter().all(|x| x.is_finite()), "{set}");
                assert!(sum_of_squares(&finite).is_finite(), "{set}");
            }
            first = if first.is_empty() { sums.clone() } else { std::mem::take(&mut first) };
            assert_eq!(sums, first, "{set}");
        });
    }
}
