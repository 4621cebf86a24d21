//! Sums in programs: the launches that add the block sums of an entry.
//!
//! `physical/cuda/sums.cuh` defines its entries, and [`kernels::sums`](crate::device::kernels::sums) the order of all sums, which is
//! that of the host.

use super::program::{Argument, Launch};
use crate::device::kernels::sums::SUMMED;

/// Number of threads that sum one block.
const LANES: usize = 64;

impl Launch {
    /// Creates the launch of an entry that sums blocks of `len` elements, as `physical/cuda/sums.cuh` does.
    pub fn summing(entry: &'static str, len: usize, arguments: Vec<Argument>) -> Self {
        Launch::over(entry, summed(len) * LANES, arguments)
    }
}

/// The sums of a program: the places of block sums, and the launches that add them.
///
/// An entry sums blocks of [`SUMMED`] elements of `rows` runs of equal length, row by row, to
/// [`blocks`](Sums::blocks); the [`launches`](Sums::launches) follow it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sums {
    /// Place for the sums of all blocks: for those of the first row, of the second, ….
    pub blocks: Argument,
    /// Launches that add them up. None if every row is one block.
    pub launches: Vec<Launch>,
    /// Size of the scratch memory that is taken, in bytes, from its beginning on.
    pub scratch: usize,
}

impl Sums {
    /// Creates the sums of `rows` runs of `len` elements, one for each row at `result`. `entry` adds up sums; the
    /// scratch memory is free from `at` on.
    pub fn new(entry: &'static str, rows: usize, len: usize, result: Argument, at: usize) -> Self {
        let mut count = summed(len);
        let mut scratch = at;
        let mut place = |count: usize| match count {
            1 => result,
            _ => {
                let place = Argument::Scratch(scratch);
                scratch += rows * count * size_of::<f64>();
                place
            }
        };
        let blocks = place(count);
        let mut launches = Vec::new();
        let mut from = blocks;
        while count > 1 {
            let next = summed(count);
            let to = place(next);
            let arguments = vec![from, Argument::U64(count as u64), Argument::U32(rows as u32), to];
            launches.push(Launch::summing(entry, count, arguments));
            from = to;
            count = next;
        }
        Sums { blocks, launches, scratch }
    }
}

/// Returns the number of blocks that are summed: one at least.
fn summed(len: usize) -> usize {
    len.div_ceil(SUMMED).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_added_up_until_there_is_one() {
        let result = Argument::Operand(1);
        for len in [0, 1, SUMMED] {
            let sums = Sums::new("fold", 2, len, result, 16);
            assert_eq!(sums, Sums { blocks: result, launches: Vec::new(), scratch: 16 }, "{len}");
        }
        let sums = Sums::new("fold", 2, SUMMED * SUMMED + 1, result, 16);
        let count = SUMMED + 1;
        let places = [16, 16 + 2 * count * 8].map(Argument::Scratch);
        let fold = |count: usize, from, to| {
            Launch::summing("fold", count, vec![from, Argument::U64(count as u64), Argument::U32(2), to])
        };
        assert_eq!(sums.blocks, places[0]);
        assert_eq!(sums.launches, [fold(count, places[0], places[1]), fold(2, places[1], result)]);
        assert_eq!(sums.scratch, 16 + 2 * (count + 2) * 8);
    }

    #[test]
    fn a_block_of_threads_sums_four_blocks_of_elements() {
        let blocks =
            [0, SUMMED, 4 * SUMMED, 4 * SUMMED + 1].map(|len| Launch::summing("x", len, Vec::new()).blocks);
        assert_eq!(blocks, [1, 1, 1, 2]);
    }
}
