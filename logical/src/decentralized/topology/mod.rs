//! The built-in topologies. All are doubly stochastic, so that gossip preserves the mean; the table shows how fast
//! ranks agree.

mod base;
mod equi;
mod named;
mod pairs;

pub use named::{any_graph, catalogue};

use super::mixing::Mixing;
use super::schedule::{Schedule, looks_static};
use crate::options_text::{NamedOptions, OptionsText};
use crate::{Error, Result};
use std::collections::BTreeSet;

/// Graph for any number of ranks, or a cycle of graphs.
///
/// σ₂ bounds the factor by which the distance from the mean shrinks in each step. bench/results/measurements.md has
/// times.
///
/// | | messages per step | σ₂ with n = 16 | agrees after |
/// |---|---|---|---|
/// | [`Ring`](Topology::Ring) | 2 | .949, (1 + 2 cos(2π/n)) / 3 | |
/// | [`Torus`](Topology::Torus) | 4 | .6 | |
/// | [`Exponential`](Topology::Exponential) | ⌈log₂ n⌉ | .6, 1 − 2 / (1 + ⌈log₂ n⌉) for even n | |
/// | [`OnePeerExponential`](Topology::OnePeerExponential) | 1 | 1 | log₂ n steps, exactly, if n is a power of two |
/// | [`XorPairs`](Topology::XorPairs) | 1 | 1 | as before |
/// | [`Hypercube`](Topology::Hypercube) | log₂ n | .6, 1 − 2 / (1 + log₂ n) | |
/// | [`Base`](Topology::Base) of k peers | k at most | 1 | log₂ n to 2 log₂ n + 2 steps with k = 1, exactly, for any n |
/// | [`EquiStatic`](Topology::EquiStatic) | ⌈log₂ n⌉ at most | .620 with seed 0 | |
/// | [`EquiOnePeer`](Topology::EquiOnePeer) | 1 | .685 on average, √((n − 1) / 2n) | |
/// | [`RandomPairs`](Topology::RandomPairs) | 1 | .683 on average, √((n − 2) / (2n − 2)) | |
/// | [`ShiftOne`](Topology::ShiftOne) | 1 | 1; .933 on average over n/2 steps | |
/// | [`Star`](Topology::Star) | n − 1 from the centre, 1 from the others | .9375, 1 − 1/n | |
/// | [`Complete`](Topology::Complete) | n − 1 | 0 | 1 step; an all-reduce does it with fewer bytes |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Both neighbours on a ring and the rank itself, a third each.
    Ring,
    /// Four neighbours on a grid with joined edges, with equal weights. The value is the number of rows, which must
    /// divide the number of ranks; `None` makes the grid as square as possible.
    Torus(Option<usize>),
    /// The ranks 1, 2, 4, … places before, all in one step, with equal weights.
    Exponential,
    /// The rank 2ᵏ places before, with weight one half; k advances with the step, up to ⌈log₂ n⌉ and from 0 again.
    /// Source: Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep learning", 2019.
    OnePeerExponential,
    /// Pairs of ranks that differ in bit k, which advances with the step; ranks without a partner wait.
    XorPairs,
    /// The ranks that differ in one bit, all in one step, with equal weights. Needs a power of two.
    Hypercube,
    /// At most `peers` partners per step, such that all ranks have the exact mean after some steps, for any number of
    /// ranks. With one partner, it takes log₂ n steps for powers of two, and at most 2 log₂ n + 2; with more partners
    /// fewer. Source: Takezawa et al., "Beyond exponential graph", 2023 (its Base-(k+1) graph, where k is `peers`).
    Base {
        /// Largest number of partners per step, 1 or more.
        peers: usize,
    },
    /// Ranks at distances that are drawn once, with equal weights. Source: Song et al., "Communication-efficient
    /// topologies for decentralized learning with O(1) consensus rate", 2022 (its D-EquiStatic).
    EquiStatic {
        /// Seed of the draws, equal on all ranks.
        seed: u64,
        /// Number of distances, drawn with replacement, 1 or more; ⌈log₂ n⌉ if `None`.
        hops: Option<usize>,
    },
    /// The rank at a distance that is drawn anew at every step, with weight one half. Source: as
    /// [`Topology::EquiStatic`] (its OD-EquiDyn).
    EquiOnePeer {
        /// Seed of the draws, equal on all ranks.
        seed: u64,
    },
    /// Rank 0 with each other rank, with Hastings weights.
    Star,
    /// All ranks, with equal weights.
    Complete,
    /// Pairs that are drawn anew at every step; one rank waits if the number of ranks is odd.
    RandomPairs {
        /// Seed of the draws, equal on all ranks.
        seed: u64,
        /// Number of pairs that average per step; all pairs if `None`.
        pairs: Option<usize>,
    },
    /// Each rank of the lower half with one of the upper half, which advances by one per step. Needs an even number
    /// of ranks. Source: Bagua.
    ShiftOne,
}

impl Schedule for Topology {
    fn mixing(&self, size: usize, step: u64) -> Result<Mixing> {
        self.check()?;
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
            Topology::XorPairs => pairs::xor(size, step),
            Topology::Hypercube => hypercube(size),
            Topology::Base { peers } => base::mixing(size, peers, step),
            Topology::EquiStatic { seed, hops } => {
                equi::fixed(size, seed, hops.unwrap_or_else(|| self::hops(size).count().max(1)))
            }
            Topology::EquiOnePeer { seed } => equi::one_peer(size, seed, step),
            Topology::Star => Mixing::hastings(size, |rank| match rank {
                0 => (1..size).collect(),
                _ => BTreeSet::from([0]),
            }),
            Topology::Complete => Mixing::pull(size, |rank| others(rank, 0..size, size)),
            Topology::RandomPairs { seed, pairs } => pairs::random(size, seed, pairs, step),
            Topology::ShiftOne => pairs::shift_one(size, step),
        }
    }

    fn spelling(&self) -> OptionsText {
        OptionsText::of_text(&self.to_string())
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    fn is_static(&self, size: usize) -> Result<bool> {
        match self {
            Topology::Ring
            | Topology::Torus(_)
            | Topology::Exponential
            | Topology::Hypercube
            | Topology::EquiStatic { .. }
            | Topology::Star
            | Topology::Complete => Ok(true),
            Topology::OnePeerExponential
            | Topology::XorPairs
            | Topology::Base { .. }
            | Topology::EquiOnePeer { .. }
            | Topology::RandomPairs { .. }
            | Topology::ShiftOne => looks_static(self, size),
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

/// Returns the hop of this step; 0 with one rank.
fn turn(size: usize, step: u64) -> usize {
    let rounds = hops(size).count() as u64;
    step.checked_rem(rounds).map_or(0, |round| 1 << round)
}

fn hypercube(size: usize) -> Result<Mixing> {
    if !size.is_power_of_two() {
        let what = format!("{size} ranks do not form a hypercube");
        return Err(Error::usage(what, "use a power of two, or the exponential graph"));
    }
    Mixing::pull(size, |rank| others(rank, hops(size).map(|bit| rank ^ bit), size))
}

fn torus(size: usize, rows: Option<usize>) -> Result<Mixing> {
    let divides = |rows: &usize| size.is_multiple_of(*rows);
    let rows = match rows {
        Some(rows) if divides(&rows) => rows,
        Some(rows) => {
            let what = format!("{size} ranks do not form a torus of {rows} rows");
            return Err(Error::usage(what, "use a divisor of the number of ranks, or omit it"));
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
