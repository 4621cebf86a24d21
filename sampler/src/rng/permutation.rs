//! `torch.randperm` on the CPU.
//!
//! Source: `randperm_cpu` in PyTorch's `aten/src/ATen/native/TensorFactories.cpp`. There are two methods, because the
//! remainder of a 32-bit number is visibly biased for `n` near 2^32; PyTorch keeps the old method for small `n`, so
//! that existing seeds give the same orders.

use super::mersenne::Mersenne;

/// Number of entries from which positions are drawn from 64 bits.
const LARGE: usize = (u32::MAX / 20) as usize;

/// Returns a random order of `0..n`, equal to `torch.randperm(n, generator=generator)`.
///
/// Takes `8 n` bytes, and a temporary `4 n` bytes, and one draw per entry (two from 214 748 364 entries on).
/// Deterministic.
///
/// ```
/// use hexagram_sampler::{Mersenne, randperm};
///
/// assert_eq!(randperm(5, &mut Mersenne::new(0)), [4, 0, 1, 3, 2]);
/// ```
pub fn randperm(n: usize, generator: &mut Mersenne) -> Vec<usize> {
    DrawnOrder::drawn(n, generator).into_indices()
}

/// A drawn order, with half the memory of `usize` entries, which also makes drawing faster.
#[derive(Debug, Clone)]
pub(crate) enum DrawnOrder {
    /// Up to 2^32 entries.
    Short(Vec<u32>),
    Long(Vec<usize>),
}

impl DrawnOrder {
    /// Draws the order of `torch.randperm`.
    pub(crate) fn drawn(n: usize, generator: &mut Mersenne) -> Self {
        match u32::try_from(n) {
            Ok(short) if n < LARGE => DrawnOrder::Short(shuffled(short, generator)),
            Ok(short) => DrawnOrder::Short(inside_out(short.into(), generator, |i| i as u32)),
            Err(_) => DrawnOrder::Long(inside_out(n as u64, generator, |i| i as usize)),
        }
    }

    /// Returns the entry at a position, which must be below `n`.
    #[inline]
    pub(crate) fn at(&self, position: usize) -> usize {
        match self {
            DrawnOrder::Short(order) => order[position] as usize,
            DrawnOrder::Long(order) => order[position],
        }
    }

    fn into_indices(self) -> Vec<usize> {
        match self {
            DrawnOrder::Short(order) => order.into_iter().map(|index| index as usize).collect(),
            DrawnOrder::Long(order) => order,
        }
    }
}

/// Shuffles by Fisher-Yates from the front: each place takes one of the entries not yet placed.
fn shuffled(n: u32, generator: &mut Mersenne) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for i in 0..n.saturating_sub(1) {
        let ahead = generator.next_u32() % (n - i);
        order.swap(i as usize, (i + ahead) as usize);
    }
    order
}

/// Shuffles by Fisher-Yates inside out: each new entry takes a random place so far, and the entry of that place moves
/// to the end.
fn inside_out<T>(n: u64, generator: &mut Mersenne, entry: impl Fn(u64) -> T) -> Vec<T> {
    let mut order = Vec::with_capacity(n as usize);
    for i in 0..n {
        let place = (generator.next_u64() % (i + 1)) as usize;
        order.push(entry(i));
        order.swap(i as usize, place);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_a_permutation(mut order: Vec<u32>) -> bool {
        order.sort_unstable();
        order.iter().copied().eq(0..order.len() as u32)
    }

    #[test]
    fn both_ways_give_permutations_of_every_length() {
        for n in [0, 1, 2, 3, 17, 1000] {
            assert!(is_a_permutation(shuffled(n, &mut Mersenne::new(3))), "{n}");
            assert!(is_a_permutation(inside_out(n.into(), &mut Mersenne::new(3), |i| i as u32)), "{n}");
        }
    }

    #[test]
    fn a_single_entry_draws_nothing() {
        let mut used = Mersenne::new(4);
        randperm(1, &mut used);
        assert_eq!(used.next_u32(), Mersenne::new(4).next_u32());
    }
}
