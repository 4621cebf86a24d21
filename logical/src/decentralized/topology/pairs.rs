//! Graphs of pairs: each rank has at most one partner, and both get their mean.

use super::super::mixing::Mixing;
use super::turn;
use crate::encoding::mix;
use crate::{Error, Result};

/// Returns the pairs of ranks that differ in the bit of this step.
pub(super) fn xor(size: usize, step: u64) -> Result<Mixing> {
    let bit = turn(size, step);
    let pairs = (0..size).filter(|rank| rank & bit == 0 && rank | bit < size);
    Mixing::of_pairs(size, &pairs.map(|rank| (rank, rank | bit)).filter(|(a, b)| a != b).collect::<Vec<_>>())
}

/// Returns pairs drawn for the step, at most `most`.
pub(super) fn random(size: usize, seed: u64, most: Option<usize>, step: u64) -> Result<Mixing> {
    let mut drawn = draw(size, mix(seed ^ mix(step)));
    drawn.truncate(most.unwrap_or(usize::MAX));
    Mixing::of_pairs(size, &drawn)
}

/// Pairs neighbours of an order shuffled by the Fisher-Yates method, with the draws of SplitMix64.
fn draw(size: usize, seed: u64) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..size).collect();
    for last in (1..size).rev() {
        // 2^64 is not a multiple of the range; the bias is below 2^-32 for any number of ranks.
        let place = mix(seed ^ mix(last as u64)) % (last as u64 + 1);
        order.swap(last, place as usize);
    }
    order.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Returns pairs of a rank of the lower and one of the upper half.
pub(super) fn shift_one(size: usize, step: u64) -> Result<Mixing> {
    if !size.is_multiple_of(2) {
        let what = format!("{size} ranks do not divide into two halves");
        return Err(Error::usage(what, "use an even number of ranks, or random pairs"));
    }
    let half = size / 2;
    let partner = |rank: usize| ((step % half as u64) as usize + rank) % half + half;
    Mixing::of_pairs(size, &(0..half).map(|rank| (rank, partner(rank))).collect::<Vec<_>>())
}
