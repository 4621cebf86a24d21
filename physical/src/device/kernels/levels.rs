//! Stochastic rounding to signed levels, packed by bits: what quantized SGD (QSGD) is made of.
//!
//! A level is `ξ ∈ 0..=s`, drawn such that `E ξ = s |x| / ‖x‖`; its code has `1 + ⌈log₂(s + 1)⌉` bits, the sign above the
//! level. Rounding is done in fixed point: `ξ = (⌊|x| · s 2^f / ‖x‖⌋ + r) ≫ f` with r uniform in `0..2^f`.
//!
//! Packed, 512 codes are 32 rows of 16 lanes. Lane l of row j is code 16j + l; a lane's codes follow each other from the
//! lowest bit, in words of 32 bits, and the words of the 16 lanes alternate: every step of a lane is a shift. Fewer codes
//! than 512 follow each other without lanes.
//!
//! Draws are a function of the key, the row and the lane, the same on every instruction set: lanes begin where Wellons'
//! two-round mixing (`lowbias32`) takes them, and go from row to row by Marsaglia's congruential generator 69069, of which
//! the high bits are used. A block draws 32 times; up to that distance the generator's lattice has no vector shorter
//! than a quarter of the best possible.

use super::bits::{Packer, Unpacker, packed_len};
use super::{LANES, Set};
use std::array::from_fn;

/// Codes that are packed together.
pub const BLOCK: usize = ROWS * LANES;

const ROWS: usize = 32;
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

#[inline(always)]
fn sum_of_squares_kernel<S: Set>(_: S, x: &[f32]) -> f64 {
    let mut sums = [0.0f64; 2 * LANES];
    let (rows, rest) = x.as_chunks::<{ 2 * LANES }>();
    for row in rows {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += f64::from(*x) * f64::from(*x);
    }
    let mut half = LANES;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}

#[inline(always)]
fn encode_kernel<S: Set>(_: S, levels: Levels, norm: f32, key: u64, x: &[f32], to: &mut [u8]) {
    let round = Round::new(levels, norm, key);
    match <&[f32; BLOCK]>::try_from(x) {
        Ok(x) => {
            let (rows, _) = x.as_chunks::<LANES>();
            let mut packed = to.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut();
            let (mut words, mut used) = ([0u32; LANES], 0);
            for (number, row) in rows.iter().enumerate() {
                let codes = round.codes(number, row);
                words = from_fn(|lane| words[lane] | codes[lane] << used);
                used += levels.bits();
                if used >= u32::BITS
                    && let Some(to) = packed.next()
                {
                    *to = bytemuck::cast(words.map(u32::to_le));
                    used -= u32::BITS;
                    words = codes.map(|code| code >> (levels.bits() - used));
                }
            }
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
        from_fn(|lane| {
            let scaled = x[lane].abs() * self.scale;
            let scaled = if scaled < self.limit { scaled } else { self.limit };
            // SAFETY: 0 ≤ scaled ≤ limit ≤ 2³⁰; the comparison has turned NaN into the limit.
            let fixed = unsafe { scaled.to_int_unchecked::<i32>() } as u32;
            let draw = self.start[lane].wrapping_mul(POWERS[row]).wrapping_add(OFFSETS[row]);
            let level = (fixed + (draw >> (u32::BITS - self.fraction))) >> self.fraction;
            level | (x[lane].to_bits() & SIGN) >> (u32::BITS - self.bits)
        })
    }
}

/// Where the lanes' generators begin.
#[inline(always)]
fn start(key: u64) -> [u32; LANES] {
    let (low, high) = (key as u32, (key >> 32) as u32);
    from_fn(|lane| {
        let word = (lane as u32).wrapping_mul(0x9e37_79b9) ^ low;
        let word = (word ^ (word >> 16)).wrapping_mul(0x7feb_352d) ^ high;
        let word = (word ^ (word >> 15)).wrapping_mul(0x846c_a68b);
        word ^ (word >> 16)
    })
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
            let (mut packed, mut words, mut left) =
                (from.as_chunks::<{ 4 * LANES }>().0.iter(), [0; LANES], 0);
            for row in to.as_chunks_mut::<LANES>().0 {
                let mut codes = words;
                if left < bits {
                    words =
                        packed.next().map_or([0; LANES], |words| bytemuck::cast(*words)).map(u32::from_le);
                    codes = from_fn(|lane| codes[lane] | words[lane] << left);
                    words = words.map(|word| word >> (bits - left));
                    left += u32::BITS;
                } else {
                    words = words.map(|word| word >> bits);
                }
                left -= bits;
                for lane in 0..LANES {
                    let level = add(codes[lane] & (u32::MAX >> (u32::BITS - bits)), &mut row[lane]);
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
