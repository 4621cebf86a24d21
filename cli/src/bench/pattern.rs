//! Input of an operation, and the expected output, computed without communication from the same formula.
//!
//! Every element is a small whole number that depends on its rank, its index and the round, so that a block in the
//! wrong place, an old result or a missing contribution shows. Results are small whole numbers too, exact in every type
//! (for 16-bit floats up to 256 ranks); only a mean is compared with a tolerance.

use super::operation::{BenchOperation, ROOT};
use half::{bf16, f16};
use hexagram::testing::Reference;
use hexagram::{Bool, Buffer, DType, Element, ReduceOp, Result};
use std::ops::{BitAnd, BitOr, BitXor, Range};

/// Whole numbers up to here are exact in bf16, the coarsest type.
const EXACT: usize = 256;

/// Runs `$call` with `$T` standing for the Rust type of a [`DType`].
macro_rules! by_type {
    ($dtype:expr, $T:ident => $call:expr) => {
        by_type!(@ $dtype, $T, $call, U8 u8, I8 i8, I16 i16, I32 i32, I64 i64, F16 f16, BF16 bf16, F32 f32,
            F64 f64, Bool Bool)
    };
    (@ $dtype:expr, $T:ident, $call:expr, $($name:ident $type:ty),*) => {
        match $dtype {
            $(DType::$name => { type $T = $type; $call })*
        }
    };
}

/// The numbers of one check of one operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pattern {
    pub(super) operation: BenchOperation,
    pub(super) reduce: ReduceOp,
    pub(super) dtype: DType,
    pub(super) ranks: usize,
    /// Elements of one block.
    pub(super) block: usize,
    /// Number of the round, so that the result of an earlier round cannot pass the check.
    pub(super) round: u64,
    /// Distance of a rank to its peer in a gossip: the number of places before it.
    pub(super) hop: usize,
}

impl Pattern {
    /// Returns the reduction, if there is one, with the value range of the type.
    fn reduce(self) -> Option<ReduceOp> {
        self.operation.reduces().then(|| self.reduce.of(self.dtype))
    }

    /// Returns the contribution of `rank` at `index`.
    fn contribution(self, rank: usize, index: usize) -> i64 {
        let bits = mix(index as u64 ^ mix(rank as u64 ^ mix(self.round))) as usize;
        let counts = index % self.ranks == rank;
        match self.reduce() {
            // One rank contributes ±3, all others ±1, so that the product is exact for any number of ranks.
            Some(ReduceOp::Product) => {
                let sign = if bits & 1 == 0 { 1 } else { -1 };
                return if counts { 3 * sign } else { sign };
            }
            // One rank contributes bits, all others the neutral value: with bits from many ranks, every result bit
            // would be 0, or 1.
            Some(ReduceOp::BitAnd) if !counts => return 15,
            Some(ReduceOp::BitOr) if !counts => return 0,
            _ => {}
        }
        if self.operation == BenchOperation::Gossip {
            // Even, so that the mean of two is whole.
            return (bits & 14) as i64;
        }
        let below = 1 << (EXACT / self.ranks).clamp(2, 16).ilog2();
        (bits & (below - 1)) as i64
    }

    /// Returns the reduction of all contributions at `index`, before the division of a mean.
    fn reduction(self, index: usize) -> i64 {
        let all = (0..self.ranks).map(|rank| self.contribution(rank, index));
        match self.reduce.of(self.dtype) {
            ReduceOp::Sum | ReduceOp::Mean => all.sum(),
            ReduceOp::Product => all.product(),
            ReduceOp::Min => all.min().unwrap_or_default(),
            ReduceOp::Max => all.max().unwrap_or_default(),
            ReduceOp::BitAnd => all.fold(-1, BitAnd::bitand),
            ReduceOp::BitOr => all.fold(0, BitOr::bitor),
            ReduceOp::BitXor => all.fold(0, BitXor::bitxor),
        }
    }

    /// Returns the expected result of `rank` at `index`, before the division of a mean.
    fn expected(self, rank: usize, index: usize) -> i64 {
        let Pattern { block, ranks, .. } = self;
        match self.operation {
            BenchOperation::AllReduce => self.reduction(index),
            BenchOperation::ReduceScatter => self.reduction(rank * block + index),
            BenchOperation::AllGather => self.contribution(index / block, index % block),
            BenchOperation::Broadcast => self.contribution(ROOT, index),
            BenchOperation::AllToAll => self.contribution(index / block, rank * block + index % block),
            BenchOperation::SendRecv => self.contribution((rank + ranks - 1) % ranks, index),
            BenchOperation::Gossip => {
                let peer = (rank + ranks - self.hop) % ranks;
                (self.contribution(rank, index) + self.contribution(peer, index)) / 2
            }
        }
    }

    /// Fills in the contribution of `rank`.
    pub(super) fn fill(self, rank: usize, buffer: &mut Buffer) -> Result<()> {
        by_type!(buffer.dtype(), T => self.fill_as::<T>(rank, buffer))
    }

    fn fill_as<T: PatternNumber>(self, rank: usize, buffer: &mut Buffer) -> Result<()> {
        for (index, element) in buffer.host_mut::<T>()?.iter_mut().enumerate() {
            *element = T::of(self.contribution(rank, index));
        }
        Ok(())
    }

    /// Returns the number of wrong elements in the result of `rank`.
    pub(super) fn wrong(self, rank: usize, buffer: &Buffer) -> Result<u64> {
        by_type!(buffer.dtype(), T => self.wrong_as::<T>(rank, buffer))
    }

    /// Returns the encodable contribution of `rank`: numbers of both signs.
    fn signed(self, rank: usize, range: Range<usize>) -> Vec<f32> {
        let middle = (1 << (EXACT / self.ranks).clamp(2, 16).ilog2()) as f32 / 2.0;
        range.map(|index| self.contribution(rank, index) as f32 - middle + 0.25).collect()
    }

    /// Fills in the contribution of `rank` to an encoded operation.
    pub(super) fn fill_signed(self, rank: usize, buffer: &mut Buffer) -> Result<()> {
        let all = 0..buffer.len();
        buffer.host_mut::<f32>()?.copy_from_slice(&self.signed(rank, all));
        Ok(())
    }

    /// Returns the number of elements that differ, in any bit, from the reference result of all contributions.
    pub(super) fn wrong_encoded(self, reference: &mut Reference, buffer: &Buffer) -> Result<u64> {
        let expected = reference.all_reduce_encoded(|rank, range| self.signed(rank, range))?;
        let elements = buffer.host::<f32>()?;
        let differ = |(element, expected): &(&f32, &f32)| element.to_bits() != expected.to_bits();
        Ok(elements.iter().zip(&expected).filter(differ).count() as u64)
    }

    fn wrong_as<T: PatternNumber>(self, rank: usize, buffer: &Buffer) -> Result<u64> {
        let is_mean = self.operation.reduces() && self.reduce == ReduceOp::Mean;
        let wrong = |(index, element): (usize, &T)| {
            let expected = self.expected(rank, index);
            // Compares bytes, since a boolean has 256 bit patterns but two values.
            let differs = || bytemuck::bytes_of(element) != bytemuck::bytes_of(&T::of(expected));
            if is_mean { !T::is_mean(*element, expected, self.ranks) } else { differs() }
        };
        let elements = buffer.host::<T>()?;
        Ok(elements.iter().enumerate().filter(|numbered| wrong(*numbered)).count() as u64)
    }
}

/// Spreads every bit of a number over all others (the finaliser of SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// Overwrites a buffer, so that a later result cannot be an earlier one.
pub(super) fn spoil(buffer: &mut Buffer) -> Result<()> {
    let spoilt = Buffer::zeroed(buffer.dtype(), buffer.len())?;
    spoilt.write_all()?.host_bytes_mut().unwrap_or_default().fill(0x55);
    buffer.write_all()?.copy_from(&spoilt.read_all()?)
}

/// Element type that holds small whole numbers.
trait PatternNumber: Element {
    /// Returns the number in this type. Integers wrap; a boolean keeps the last bit.
    fn of(number: i64) -> Self;

    /// Returns true if this is `sum / ranks`, within the rounding error of the contributions and steps.
    fn is_mean(self, sum: i64, ranks: usize) -> bool;
}

macro_rules! numbers {
    ($($type:ty: $of:expr, $wide:expr, $epsilon:expr);* $(;)?) => {$(
        impl PatternNumber for $type {
            fn of(number: i64) -> Self {
                $of(number)
            }

            fn is_mean(self, sum: i64, ranks: usize) -> bool {
                let mean = sum as f64 / ranks as f64;
                ($wide(self) - mean).abs() <= mean.abs() * $epsilon * (ranks + 1) as f64
            }
        }
    )*};
}
numbers! {
    u8: |n| n as u8, f64::from, 0.0;
    i8: |n| n as i8, f64::from, 0.0;
    i16: |n| n as i16, f64::from, 0.0;
    i32: |n| n as i32, f64::from, 0.0;
    i64: |n| n, |wide| wide as f64, 0.0;
    f16: |n| f16::from_f64(n as f64), f64::from, f64::from(f16::EPSILON);
    bf16: |n| bf16::from_f64(n as f64), f64::from, f64::from(bf16::EPSILON);
    f32: |n| n as f32, f64::from, f64::from(f32::EPSILON);
    f64: |n| n as f64, |wide| wide, f64::EPSILON;
    Bool: |n| Bool::from(n & 1 == 1), |wide: Bool| f64::from(u8::from(wide.get())), 0.0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    /// The expected result of the collective, one element at a time.
    fn carried_out(pattern: Pattern, dtype: DType, rank: usize, len: usize) -> Buffer {
        let mut buffer = Buffer::zeroed(dtype, len).unwrap();
        by_type!(dtype, T => {
            for (index, element) in buffer.host_mut::<T>().unwrap().iter_mut().enumerate() {
                *element = T::of(pattern.expected(rank, index));
            }
        });
        buffer
    }

    #[test]
    fn every_wrong_element_is_counted() {
        let all =
            BenchOperation::value_variants().iter().flat_map(|each| DType::ALL.map(|dtype| (*each, dtype)));
        for (operation, dtype) in
            all.filter(|(each, dtype)| *each != BenchOperation::Gossip || dtype.is_float())
        {
            let pattern =
                Pattern { operation, reduce: ReduceOp::Max, dtype, ranks: 4, block: 25, round: 1, hop: 1 };
            let mut buffer = carried_out(pattern, dtype, 2, 25);
            assert_eq!(pattern.wrong(2, &buffer).unwrap(), 0, "{operation:?} {dtype}");
            for spoilt in [0..1, 24..25, 7..19] {
                let count = spoilt.len() as u64;
                buffer.write(spoilt).unwrap().host_bytes_mut().unwrap().fill(0x55);
                let wrong = pattern.wrong(2, &buffer).unwrap();
                assert_eq!(wrong, count, "{operation:?} {dtype}");
                buffer = carried_out(pattern, dtype, 2, 25);
            }
        }
    }

    #[test]
    fn what_another_rank_round_or_place_would_have_is_wrong() {
        for &operation in BenchOperation::value_variants() {
            let pattern = Pattern {
                operation,
                reduce: ReduceOp::Sum,
                dtype: DType::F32,
                ranks: 3,
                block: 100,
                round: 1,
                hop: 1,
            };
            let right = carried_out(pattern, DType::F32, 1, 100);
            let others = [Pattern { round: 2, ..pattern }, Pattern { ranks: 4, ..pattern }];
            // Only a reduction has something of every rank in one element.
            for other in &others[..if operation.reduces() { 2 } else { 1 }] {
                assert!(other.wrong(1, &right).unwrap() > 50, "{operation:?} {other:?}");
            }
            let moved: Vec<f32> =
                right.host::<f32>().unwrap().iter().copied().cycle().skip(1).take(100).collect();
            assert!(pattern.wrong(1, &Buffer::from_slice(&moved).unwrap()).unwrap() > 50, "{operation:?}");
        }
    }

    #[test]
    fn results_are_exact_in_every_type() {
        let operation = BenchOperation::AllReduce;
        let dtype = DType::F32;
        for (reduce, ranks) in ReduceOp::ALL.into_iter().flat_map(|op| [1, 2, 3, 7, 64, 256].map(|n| (op, n)))
        {
            let pattern = Pattern { operation, reduce, dtype, ranks, block: 1, round: 0, hop: 1 };
            for index in 0..100 {
                let largest = EXACT as i64;
                let all = 0..ranks;
                assert!(pattern.expected(0, index).abs() <= largest, "{pattern:?}");
                assert!(all.into_iter().all(|rank| pattern.contribution(rank, index).abs() <= 15));
            }
        }
    }

    #[test]
    fn a_mean_may_be_rounded_but_not_wrong() {
        assert!(f32::is_mean(7.0 * (1.0 / 3.0), 7, 3));
        assert!(!f32::is_mean(2.3334, 7, 3));
        assert!(f16::is_mean(f16::from_f32(7.0 / 3.0), 7, 3));
        assert!(!f16::is_mean(f16::from_f32(2.4), 7, 3) && !f32::is_mean(f32::NAN, 7, 3));
    }
}
