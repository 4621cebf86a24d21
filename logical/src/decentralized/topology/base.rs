//! Base-(k+1) graphs: the exact mean of any number of ranks after few rounds, with at most k partners per rank.
//!
//! ```text
//! hyper-hypercube     n = f₁ · f₂ · …, all fᵢ ≤ k+1: in round i ranks average in groups of fᵢ, Π fⱼ (j < i) apart
//!
//! simple base graph   n = N₁ + N₂ + …, Nₗ = aₗ (k+1)^pₗ, aₗ ≤ k, p₁ > p₂ > …: parts of so many ranks, in aₗ blocks
//!   1. every part comes to its own mean, by hyper-hypercubes
//!   2. for j = 1, 2, …: each rank of the parts behind j takes N_j / (N_j + N_j+1 + …) of part j's mean, an equal share
//!      from one rank of each of its blocks, and gives as much
//!   3. after that, every block comes to its mean, which is that of all by now
//!
//! base graph          n = p · q, p all of n's factors up to k+1: simple base graphs of q ranks each, then a
//!                     hyper-hypercube over each rank's p fellows; or the simple base graph of all n if that is shorter
//! ```
//!
//! At most 2 log_{k+1} n + 2 rounds. Source: Takezawa, Sato, Bao, Niwa and Yamada, "Beyond exponential graph:
//! communication-efficient topologies for decentralized learning via finite-time convergence", NeurIPS 2023. (Their
//! code also lets ranks that wait in step 2 average among themselves, which has no effect, since parts have already
//! reached their means.)

use super::super::mixing::{Edge, Mixing};
use crate::Result;

/// Two ranks that exchange numbers in a round, with equal weights.
#[derive(Debug, Clone, Copy)]
struct WeightedPair {
    one: usize,
    other: usize,
    weight: f64,
}

/// Exchanges of one round.
type PairRound = Vec<WeightedPair>;

/// Returns the matrix of `step` among `size` ranks, each with at most `peers` partners, 1 or more.
pub(super) fn mixing(size: usize, peers: usize, step: u64) -> Result<Mixing> {
    let rounds = base(size, peers.saturating_add(1).min(size.max(2)));
    let round = step.checked_rem(rounds.len() as u64).map_or(&[][..], |round| &rounds[round as usize]);
    let mut own = vec![1.0; size];
    let mut edges = Vec::with_capacity(2 * round.len());
    for WeightedPair { one, other, weight } in round.iter().copied() {
        own[one] -= weight;
        own[other] -= weight;
        edges.push(Edge { from: one, to: other, source: weight, destination: 1.0 });
        edges.push(Edge { from: other, to: one, source: weight, destination: 1.0 });
    }
    Mixing::of_edges(own, &edges)
}

/// Returns the number of rounds after which `size` ranks agree.
#[cfg(test)]
fn rounds(size: usize, peers: usize) -> usize {
    base(size, peers.saturating_add(1).min(size.max(2))).len()
}

/// Returns the rounds of a base graph. `radix`: k + 1.
fn base(size: usize, radix: usize) -> Vec<PairRound> {
    let all: Vec<usize> = (0..size).collect();
    let simple_of_all = simple(&all, radix);
    let rest = factors(size, radix).1;
    let groups = all.chunks(rest.max(1));
    let fellows = (0..rest).map(|place| groups.clone().map(|group| group[place]).collect::<Vec<_>>());
    let mut rounds = in_parallel(groups.clone().map(|group| simple(group, radix)));
    rounds.extend(in_parallel(fellows.map(|fellows| hypercube(&fellows, radix))));
    if simple_of_all.len() < rounds.len() { simple_of_all } else { rounds }
}

/// Returns the rounds of a simple base graph.
fn simple(members: &[usize], radix: usize) -> Vec<PairRound> {
    if factors(members.len(), radix).1 <= 1 {
        return hypercube(members, radix);
    }
    let parts = parts(members, radix);
    let mut rounds = in_parallel(parts.iter().map(|part| hypercube(part.members, radix)));
    for at in 0..parts.len() - 1 {
        rounds.push(spread(&parts[at..]));
    }
    // A part has finished step 2 after giving; the last part after taking.
    let within = |(at, part): (usize, &PowerPart<'_>)| {
        let idle = (at + 1).min(parts.len() - 1);
        let blocks = in_parallel(part.blocks().map(|block| hypercube(block, radix)));
        let together = if part.block == 1 { hypercube(part.members, radix) } else { blocks };
        [vec![PairRound::new(); idle], together].concat()
    };
    let last = in_parallel(parts.iter().enumerate().map(within));
    let first = rounds.len() + 1 - parts.len();
    for (at, round) in last.into_iter().enumerate() {
        match rounds.get_mut(first + at) {
            Some(under_way) => under_way.extend(round),
            None => rounds.push(round),
        }
    }
    rounds
}

/// Part of the ranks: blocks of a power of k + 1.
struct PowerPart<'a> {
    members: &'a [usize],
    /// Size of a block.
    block: usize,
}

impl<'a> PowerPart<'a> {
    fn blocks(&self) -> std::slice::Chunks<'a, usize> {
        self.members.chunks(self.block)
    }
}

/// Divides ranks by the digits of their number, the largest power first.
fn parts(members: &[usize], radix: usize) -> Vec<PowerPart<'_>> {
    let mut block = 1;
    while block * radix <= members.len() {
        block *= radix;
    }
    let mut rest = members;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (members, others) = rest.split_at(rest.len() / block * block);
        if !members.is_empty() {
            parts.push(PowerPart { members, block });
        }
        rest = others;
        block /= radix;
    }
    parts
}

/// Returns the exchanges of step 2 for the first part: every rank of the other parts takes its share of that part's mean.
fn spread(parts: &[PowerPart<'_>]) -> PairRound {
    let [first, behind @ ..] = parts else { return PairRound::new() };
    let count = |parts: &[PowerPart<'_>]| parts.iter().map(|part| part.members.len()).sum::<usize>() as f64;
    let blocks = first.blocks();
    let weight = first.members.len() as f64 / count(parts) / blocks.len() as f64;
    let takers = behind.iter().flat_map(|part| part.members).enumerate();
    // A block has more ranks than all parts after its own.
    takers
        .flat_map(|(at, one)| {
            blocks.clone().map(move |block| WeightedPair { one: *one, other: block[at], weight })
        })
        .collect()
}

/// Returns the rounds of a hyper-hypercube; `None` if there is a factor above `radix`.
fn hypercube(members: &[usize], radix: usize) -> Vec<PairRound> {
    let mut apart = 1;
    let mut rounds = Vec::new();
    for factor in factors(members.len(), radix).0 {
        let weight = 1.0 / factor as f64;
        let mut round = PairRound::new();
        for group in members.chunks(apart * factor) {
            for first in 0..apart {
                for (one, other) in
                    (0..factor).flat_map(|one| (one + 1..factor).map(move |other| (one, other)))
                {
                    let at = |place: usize| group[first + place * apart];
                    round.push(WeightedPair { one: at(one), other: at(other), weight });
                }
            }
        }
        rounds.push(round);
        apart *= factor;
    }
    rounds
}

/// Returns the factors of a number that are at most `radix`, ascending, and the remaining factor. It divides by the largest
/// possible factor first, so that there are few.
fn factors(number: usize, radix: usize) -> (Vec<usize>, usize) {
    let mut rest = number;
    let mut factors = Vec::new();
    for factor in (2..=radix).rev() {
        while rest > 1 && rest.is_multiple_of(factor) {
            factors.push(factor);
            rest /= factor;
        }
    }
    factors.reverse();
    (factors, rest)
}

/// Returns the rounds of several graphs of disjoint ranks in parallel; shorter ones wait at the end.
fn in_parallel(graphs: impl Iterator<Item = Vec<PairRound>>) -> Vec<PairRound> {
    let mut together: Vec<PairRound> = Vec::new();
    for graph in graphs {
        together.resize(together.len().max(graph.len()), PairRound::new());
        together.iter_mut().zip(graph).for_each(|(all, one)| all.extend(one));
    }
    together
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an upper bound of the distance of each unit vector from the mean after all rounds.
    fn off(size: usize, peers: usize) -> f64 {
        let mut columns: Vec<Vec<f64>> =
            (0..size).map(|unit| (0..size).map(|rank| f64::from(u8::from(rank == unit))).collect()).collect();
        for step in 0..rounds(size, peers) as u64 {
            let mixing = mixing(size, peers, step).unwrap();
            assert!(mixing.is_doubly_stochastic() && mixing.is_symmetric(), "{size} ranks, {peers} peers");
            for rank in 0..size {
                assert!(mixing.sources(rank).len() <= peers, "{size} ranks, {peers} peers: {mixing:?}");
            }
            for column in &mut columns {
                let row = |rank| mixing.row(rank).iter().map(|(from, weight)| weight * column[*from]).sum();
                *column = (0..size).map(row).collect();
            }
        }
        let mean = 1.0 / size as f64;
        columns.iter().flatten().map(|x| (x - mean).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn all_ranks_have_the_exact_mean_in_the_end() {
        for peers in 1..=4 {
            for size in 1..=99 {
                let off = off(size, peers);
                assert!(off < 1e-14, "{size} ranks, {peers} peers: off by {off}");
                let most = 2.0 * (size as f64).ln() / ((peers + 1) as f64).ln() + 2.0;
                assert!(rounds(size, peers) as f64 <= most, "{size} ranks, {peers} peers");
            }
        }
    }

    #[test]
    fn powers_of_two_are_hypercubes_and_the_papers_examples_have_their_lengths() {
        for (size, peers, expected) in
            [(1, 1, 0), (2, 1, 1), (8, 1, 3), (5, 1, 5), (6, 1, 4), (9, 2, 2), (5, 4, 1)]
        {
            assert_eq!(rounds(size, peers), expected, "{size} ranks, {peers} peers");
        }
    }
}
