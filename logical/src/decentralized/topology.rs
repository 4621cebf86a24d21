//! The built-in topologies. All are doubly stochastic, so that gossip over them keeps the mean; the table says how fast
//! ranks agree.

use super::mixing::Mixing;
use super::schedule::Schedule;
use crate::encoding::mix;
use crate::{Error, Result};
use std::collections::BTreeSet;

/// Graph for any number of ranks, or several that take turns.
///
/// σ₂ is the factor by which the distance from the mean shrinks, at most, with every step. docs/benchmarks.md has times.
///
/// | | sends a step | σ₂ with n = 16 | agrees after |
/// |---|---|---|---|
/// | [`Ring`](Topology::Ring) | 2 | .949, (1 + 2 cos(2π/n)) / 3 | |
/// | [`Torus`](Topology::Torus) | 4 | .6 | |
/// | [`Exponential`](Topology::Exponential) | ⌈log₂ n⌉ | .6, 1 − 2 / (1 + ⌈log₂ n⌉) for even n | |
/// | [`OnePeerExponential`](Topology::OnePeerExponential) | 1 | 1 | log₂ n steps, exactly, if n is a power of two |
/// | [`XorPairs`](Topology::XorPairs) | 1 | 1 | as before |
/// | [`RandomPairs`](Topology::RandomPairs) | 1 | .683 on average, √((n − 2) / (2n − 2)) | |
/// | [`ShiftOne`](Topology::ShiftOne) | 1 | 1; .933 on average over n/2 steps | |
/// | [`Star`](Topology::Star) | n − 1 from the centre, 1 from the others | .9375, 1 − 1/n | |
/// | [`Complete`](Topology::Complete) | n − 1 | 0 | 1 step; an all-reduce does it with fewer bytes |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Both neighbours on a ring and oneself, a third each.
    Ring,
    /// Four neighbours on a grid whose edges are joined, equal weights. With a number of rows, which must divide the number
    /// of ranks; without, as square as can be.
    Torus(Option<usize>),
    /// The ranks 1, 2, 4, … places before, all at once, at equal weights.
    Exponential,
    /// The rank 2ᵏ places before, half and half; k counts on with the step, to ⌈log₂ n⌉ and from 0 again. Source:
    /// Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep learning", 2019.
    OnePeerExponential,
    /// Pairs of ranks that differ in bit k, which counts on with the step; ranks without a partner wait.
    XorPairs,
    /// Rank 0 and each other, Hastings weights.
    Star,
    /// All ranks, at equal weights.
    Complete,
    /// Pairs that are drawn anew at every step; one is left over if the number of ranks is odd.
    RandomPairs {
        /// Seed of the draws, equal on all ranks.
        seed: u64,
        /// Number of pairs that average at a step; all pairs if `None`.
        pairs: Option<usize>,
    },
    /// Each rank of the lower half with one of the upper half, which moves on by one a step. Needs an even number of
    /// ranks. Source: Bagua.
    ShiftOne,
}

impl Schedule for Topology {
    fn mixing(&self, size: usize, step: u64) -> Result<Mixing> {
        match *self {
            Topology::Ring => Mixing::pull(size, |rank| others(rank, [rank + 1, rank + size - 1], size)),
            Topology::Torus(rows) => torus(size, rows),
            Topology::Exponential => {
                Mixing::pull(size, |rank| others(rank, hops(size).map(|hop| rank + size - hop), size))
            }
            Topology::OnePeerExponential => {
                let hop = turn(size, step);
                Mixing::pull(size, |rank| others(rank, [rank + size - hop], size))
            }
            Topology::XorPairs => {
                let bit = turn(size, step);
                let pairs = (0..size).filter(|rank| rank & bit == 0 && rank | bit < size);
                Mixing::of_pairs(
                    size,
                    &pairs.map(|rank| (rank, rank | bit)).filter(|(a, b)| a != b).collect::<Vec<_>>(),
                )
            }
            Topology::Star => Mixing::hastings(size, |rank| match rank {
                0 => (1..size).collect(),
                _ => BTreeSet::from([0]),
            }),
            Topology::Complete => Mixing::pull(size, |rank| others(rank, 0..size, size)),
            Topology::RandomPairs { seed, pairs } => {
                let mut drawn = draw_pairs(size, mix(seed ^ mix(step)));
                drawn.truncate(pairs.unwrap_or(usize::MAX));
                Mixing::of_pairs(size, &drawn)
            }
            Topology::ShiftOne => shift_one(size, step),
        }
    }
}

/// Returns `ranks` modulo `size`, each once, without `rank` itself.
fn others(rank: usize, ranks: impl IntoIterator<Item = usize>, size: usize) -> BTreeSet<usize> {
    ranks.into_iter().map(|other| other % size).filter(|other| *other != rank).collect()
}

/// Returns 1, 2, 4, … below `size`.
fn hops(size: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1usize), |hop| hop.checked_mul(2)).take_while(move |hop| *hop < size)
}

/// Returns the hop whose turn it is; 0 with one rank.
fn turn(size: usize, step: u64) -> usize {
    let rounds = hops(size).count() as u64;
    step.checked_rem(rounds).map_or(0, |round| 1 << round)
}

fn torus(size: usize, rows: Option<usize>) -> Result<Mixing> {
    let divides = |rows: &usize| *rows > 0 && size.is_multiple_of(*rows);
    let rows = match rows {
        Some(rows) if divides(&rows) => rows,
        Some(rows) => {
            let what = format!("{size} ranks make no torus of {rows} rows");
            return Err(Error::usage(what, "use a divisor of the number of ranks, or let it be chosen"));
        }
        None => (1..=size.isqrt()).rev().find(divides).unwrap_or(1),
    };
    let columns = size / rows;
    Mixing::pull(size, |rank| {
        let row = rank / columns;
        let column = rank % columns;
        let at = |row: usize, column: usize| row % rows * columns + column % columns;
        let up_and_down = [at(row + 1, column), at(row + rows - 1, column)];
        let left_and_right = [at(row, column + 1), at(row, column + columns - 1)];
        others(rank, up_and_down.into_iter().chain(left_and_right), size)
    })
}

/// Pairs neighbours of an order shuffled by Fisher and Yates's method, with the draws of SplitMix64.
fn draw_pairs(size: usize, seed: u64) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..size).collect();
    for last in (1..size).rev() {
        // A multiple of the range is missing from 2^64 numbers; the bias is below 2^-32 for any number of ranks.
        let place = mix(seed ^ mix(last as u64)) % (last as u64 + 1);
        order.swap(last, place as usize);
    }
    order.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

fn shift_one(size: usize, step: u64) -> Result<Mixing> {
    if !size.is_multiple_of(2) {
        let what = format!("{size} ranks do not divide into two halves");
        return Err(Error::usage(what, "use an even number of ranks, or random pairs"));
    }
    let half = size / 2;
    let partner = |rank: usize| ((step % half as u64) as usize + rank) % half + half;
    Mixing::of_pairs(size, &(0..half).map(|rank| (rank, partner(rank))).collect::<Vec<_>>())
}
