//! `torch.randperm` on the CPU. Open this file to see how the order of an epoch is drawn.
//!
//! Source: `randperm_cpu` in PyTorch's `aten/src/ATen/native/TensorFactories.cpp`. There are two ways,
//! because the remainder of a 32-bit number is visibly uneven once `n` comes near 2^32; PyTorch keeps the old
//! one for small `n` so that seeds keep their meaning.

use crate::mersenne::Mersenne;

/// From this many entries on, positions are drawn from 64 bits.
const LARGE: usize = (u32::MAX / 20) as usize;

/// A random order of `0..n`, equal to `torch.randperm(n, generator=generator)`.
///
/// Takes `8 n` bytes and one draw an entry (two from 214 748 364 entries on). Deterministic.
///
/// ```
/// use hexagram_sampler::{Mersenne, randperm};
///
/// assert_eq!(randperm(5, &mut Mersenne::new(0)), [4, 0, 1, 3, 2]);
/// ```
pub fn randperm(n: usize, generator: &mut Mersenne) -> Vec<usize> {
    if n < LARGE { shuffled(n, generator) } else { inside_out(n, generator) }
}

/// Fisher-Yates from the front: each place takes one of the entries not yet placed.
fn shuffled(n: usize, generator: &mut Mersenne) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in 0..n.saturating_sub(1) {
        let ahead = generator.next_u32() as usize % (n - i);
        order.swap(i, i + ahead);
    }
    order
}

/// Fisher-Yates inside out: each new entry takes a place so far, and who stood there moves to the end.
fn inside_out(n: usize, generator: &mut Mersenne) -> Vec<usize> {
    let mut order = Vec::with_capacity(n);
    for i in 0..n {
        let place = (generator.next_u64() % (i as u64 + 1)) as usize;
        order.push(i);
        order.swap(i, place);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_a_permutation(mut order: Vec<usize>) -> bool {
        order.sort_unstable();
        order.iter().copied().eq(0..order.len())
    }

    #[test]
    fn both_ways_give_permutations_of_every_length() {
        for n in [0, 1, 2, 3, 17, 1000] {
            assert!(is_a_permutation(shuffled(n, &mut Mersenne::new(3))), "{n}");
            assert!(is_a_permutation(inside_out(n, &mut Mersenne::new(3))), "{n}");
        }
    }

    #[test]
    fn a_single_entry_draws_nothing() {
        let mut used = Mersenne::new(4);
        randperm(1, &mut used);
        assert_eq!(used.next_u32(), Mersenne::new(4).next_u32());
    }
}
