//! Mixing matrices: the weights with which ranks combine their numbers.
//!
//! `wᵢⱼ` is the weight with which rank i takes the numbers of rank j; j sends to i if it is not zero. In a
//! row-stochastic matrix every row adds up to 1: ranks that agree continue to agree. In a column-stochastic one every
//! column does: the sum over ranks is preserved. Gossip needs the first, push-sum the second. For ranks to agree on
//! the mean of all in the end, gossip needs both.

use crate::{Error, Result, hash};
use std::collections::BTreeSet;

/// Maximum distance of a sum of weights from 1: weights that were rounded to f32 pass, missing ones do not.
const TOLERANCE: f64 = 1e-6;

/// Weights of one step among all ranks: a square matrix, stored without its zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixing {
    own: Vec<f64>,
    /// Senders to each receiver, ascending, with their weights.
    sources: Vec<Vec<(usize, f64)>>,
    /// Receivers from each sender, ascending.
    destinations: Vec<Vec<usize>>,
}

/// Edge from one rank to another, with a weight from each side: `w = source × destination`.
///
/// Receivers that choose weights for their sources (pull) leave `destination` at 1; senders that choose them for
/// their destinations (push) leave `source` at 1. The receiver applies both in one product, when it adds the message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    /// Rank that sends.
    pub from: usize,
    /// Rank that receives.
    pub to: usize,
    /// Weight of the receiver for this source.
    pub source: f64,
    /// Weight of the sender for this destination.
    pub destination: f64,
}

impl Mixing {
    /// Creates the matrix of any graph: `own[i]` is the weight of rank i's own numbers, and `edges` are all others.
    ///
    /// # Errors
    /// [`Error::Usage`] if a rank is out of range, a weight is not finite, or two edges connect the same ranks in the
    /// same direction.
    pub fn of_edges(own: Vec<f64>, edges: &[Edge]) -> Result<Self> {
        let size = own.len();
        let mut mixing =
            Mixing { own, sources: vec![Vec::new(); size], destinations: vec![Vec::new(); size] };
        for Edge { from, to, source, destination } in edges {
            if *from.max(to) >= size || from == to {
                let what = format!("an edge from rank {from} to rank {to} is invalid among {size} ranks");
                return Err(Error::usage(what, "connect different ranks from 0 to size - 1"));
            }
            if source * destination != 0.0 {
                mixing.sources[*to].push((*from, source * destination));
                mixing.destinations[*from].push(*to);
            }
        }
        mixing.sources.iter_mut().for_each(|sources| sources.sort_by_key(|(from, _)| *from));
        mixing.destinations.iter_mut().for_each(|destinations| destinations.sort_unstable());
        mixing.checked()
    }

    /// Creates a matrix from `size` rows, one after another.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is not square, or a weight is not finite.
    pub fn of_matrix(size: usize, weights: &[f64]) -> Result<Self> {
        if size.checked_mul(size) != Some(weights.len()) {
            let what = format!("{} weights do not make a matrix for {size} ranks", weights.len());
            return Err(Error::usage(what, "pass size × size weights, row by row"));
        }
        let at = |to: usize, from: usize| weights[to * size + from];
        let edge = |to, from| Edge { from, to, source: at(to, from), destination: 1.0 };
        let edges: Vec<Edge> = pairs(size).map(|(to, from)| edge(to, from)).collect();
        Self::of_edges((0..size).map(|rank| at(rank, rank)).collect(), &edges)
    }

    /// Creates a row-stochastic matrix in which every rank takes its own numbers and those of its `sources` with
    /// equal weights. It is doubly stochastic if every rank has the same number of sources, and of receivers.
    ///
    /// # Errors
    /// As [`Mixing::of_edges`].
    pub fn pull(size: usize, sources: impl Fn(usize) -> BTreeSet<usize>) -> Result<Self> {
        let even = |degree: usize| 1.0 / (1 + degree) as f64;
        Self::of_neighbours(size, sources, |own, _| even(own), |own, _| even(own))
    }

    /// Creates a column-stochastic matrix, for push-sum, in which every rank keeps the same share of its numbers as
    /// it sends to each of its `destinations`.
    ///
    /// # Errors
    /// As [`Mixing::of_edges`].
    pub fn push(size: usize, destinations: impl Fn(usize) -> BTreeSet<usize>) -> Result<Self> {
        Self::pull(size, destinations).map(Mixing::transposed)
    }

    /// Creates a symmetric, doubly stochastic matrix of a graph with mutual `neighbours`, for any numbers of
    /// neighbours: `wᵢⱼ = 1 ÷ (1 + max(degreeᵢ, degreeⱼ))`, and the rest is the own weight. Source: Hastings, "Monte
    /// Carlo sampling methods using Markov chains and their applications", 1970; Xiao, Boyd and Kim, "Distributed
    /// average consensus with least-mean-square deviation", 2007 (as Metropolis weights).
    ///
    /// # Errors
    /// As [`Mixing::of_edges`].
    pub fn hastings(size: usize, neighbours: impl Fn(usize) -> BTreeSet<usize>) -> Result<Self> {
        let weight = |own: usize, other: usize| 1.0 / (1 + own.max(other)) as f64;
        Self::of_neighbours(size, neighbours, weight, |_, taken| 1.0 - taken)
    }

    /// Creates a symmetric, doubly stochastic matrix in which pairs of ranks average, and other ranks keep their
    /// numbers.
    ///
    /// # Errors
    /// As [`Mixing::of_edges`].
    pub fn of_pairs(size: usize, pairs: &[(usize, usize)]) -> Result<Self> {
        let mut own = vec![1.0; size];
        pairs.iter().flat_map(|(one, other)| [one, other]).filter(|rank| **rank < size).for_each(|rank| {
            own[*rank] = 0.5;
        });
        let edge = |from, to| Edge { from, to, source: 0.5, destination: 1.0 };
        let edges: Vec<Edge> = pairs.iter().flat_map(|(a, b)| [edge(*a, *b), edge(*b, *a)]).collect();
        Self::of_edges(own, &edges)
    }

    /// Creates a matrix in which rank i takes from each of `neighbours(i)` with `weight(degree of i, degree of the
    /// other)`, and from itself with `own(degree of i, sum of the others)`.
    fn of_neighbours(
        size: usize,
        neighbours: impl Fn(usize) -> BTreeSet<usize>,
        weight: impl Fn(usize, usize) -> f64,
        own: impl Fn(usize, f64) -> f64,
    ) -> Result<Self> {
        let all: Vec<BTreeSet<usize>> = (0..size).map(neighbours).collect();
        let degree = |rank: usize| all.get(rank).map_or(0, BTreeSet::len);
        let edge = |to: usize, from: usize| {
            let source = weight(degree(to), degree(from));
            Edge { from, to, source, destination: 1.0 }
        };
        let rows = || all.iter().enumerate();
        let edges: Vec<Edge> =
            rows().flat_map(|(to, sources)| sources.iter().map(move |from| edge(to, *from))).collect();
        let taken = |to: usize, sources: &BTreeSet<usize>| -> f64 {
            sources.iter().map(|from| weight(degree(to), degree(*from))).sum()
        };
        let own = rows().map(|(to, sources)| own(sources.len(), taken(to, sources))).collect();
        Self::of_edges(own, &edges)
    }

    /// Returns the same graph with new weights: `own` for each rank's own numbers, and `weight(to, from, weight)` for
    /// the others.
    pub(super) fn reweighted(&self, own: Vec<f64>, weight: impl Fn(usize, usize, f64) -> f64) -> Self {
        let mut sources = self.sources.clone();
        for (to, row) in sources.iter_mut().enumerate() {
            row.iter_mut().for_each(|(from, old)| *old = weight(to, *from, *old));
        }
        Mixing { own, sources, destinations: self.destinations.clone() }
    }

    fn transposed(self) -> Self {
        let size = self.size();
        let mut sources = vec![Vec::new(); size];
        let mut destinations = vec![Vec::new(); size];
        for (to, from) in self.sources.into_iter().enumerate() {
            for (from, weight) in from {
                sources[from].push((to, weight));
                destinations[to].push(from);
            }
        }
        Mixing { own: self.own, sources, destinations }
    }

    fn checked(self) -> Result<Self> {
        let odd = self.rows().find(|(_, row)| row.iter().any(|(_, weight)| !weight.is_finite()));
        if let Some((rank, _)) = odd {
            let what = format!("a weight of rank {rank} is not finite");
            return Err(Error::usage(what, "use finite weights"));
        }
        for (to, sources) in self.sources.iter().enumerate() {
            if let Some(twice) = sources.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                let what = format!("two edges connect rank {} to rank {to}", twice[0].0);
                return Err(Error::usage(what, "merge them, and add their weights"));
            }
        }
        Ok(self)
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.own.len()
    }

    /// Returns the ranks from which `rank` takes numbers, ascending, with their weights.
    ///
    /// # Panics
    /// If `rank` is out of range. The same holds for the other methods with a rank.
    pub fn sources(&self, rank: usize) -> &[(usize, f64)] {
        &self.sources[rank]
    }

    /// Returns the ranks that `rank` sends to, ascending.
    pub fn destinations(&self, rank: usize) -> &[usize] {
        &self.destinations[rank]
    }

    /// Returns `wᵢⱼ`, the weight with which rank `to` takes from rank `from`, possibly the same rank.
    pub fn weight(&self, to: usize, from: usize) -> f64 {
        if to == from {
            return self.own[to];
        }
        let found = self.sources[to].binary_search_by_key(&from, |(from, _)| *from);
        found.map_or(0.0, |at| self.sources[to][at].1)
    }

    /// Returns row `rank` of the matrix: the ranks from which it takes numbers, including itself, ascending, with
    /// their weights.
    pub fn row(&self, rank: usize) -> Vec<(usize, f64)> {
        let mut row = self.sources[rank].clone();
        row.insert(row.partition_point(|(from, _)| *from < rank), (rank, self.own[rank]));
        row
    }

    fn rows(&self) -> impl Iterator<Item = (usize, Vec<(usize, f64)>)> {
        (0..self.size()).map(|rank| (rank, self.row(rank)))
    }

    /// Returns the whole matrix, row by row, for analysis.
    pub fn dense(&self) -> Vec<f64> {
        let size = self.size();
        let mut dense = vec![0.0; size * size];
        for (to, row) in self.rows() {
            row.iter().for_each(|(from, weight)| dense[to * size + from] = *weight);
        }
        dense
    }

    /// Returns true if no weight is negative and every row adds up to 1.
    pub fn is_row_stochastic(&self) -> bool {
        self.adds_up(|to, _| to)
    }

    /// Returns true if no weight is negative and every column adds up to 1.
    pub fn is_column_stochastic(&self) -> bool {
        self.adds_up(|_, from| from)
    }

    /// Returns true if the matrix is row- and column-stochastic.
    pub fn is_doubly_stochastic(&self) -> bool {
        self.is_row_stochastic() && self.is_column_stochastic()
    }

    /// Returns true if `wᵢⱼ = wⱼᵢ` for all i and j.
    pub fn is_symmetric(&self) -> bool {
        self.rows().all(|(to, row)| row.iter().all(|(from, weight)| self.weight(*from, to) == *weight))
    }

    fn adds_up(&self, line: impl Fn(usize, usize) -> usize) -> bool {
        let mut sums = vec![0.0; self.size()];
        for (to, row) in self.rows() {
            for (from, weight) in row {
                if weight < 0.0 {
                    return false;
                }
                sums[line(to, from)] += weight;
            }
        }
        sums.iter().all(|sum| (sum - 1.0).abs() <= TOLERANCE)
    }

    /// Returns 31 bits of a hash of the whole matrix, enough to detect that ranks use different ones.
    pub(super) fn digest(&self) -> u32 {
        let words = self.rows().flat_map(|(to, row)| {
            row.into_iter().flat_map(move |(from, weight)| [to as u64, from as u64, weight.to_bits()])
        });
        let hash = hash::of_bytes(hash::START, words.flat_map(u64::to_le_bytes));
        (hash ^ (hash >> 32)) as u32 >> 1
    }
}

/// Returns all pairs of different ranks.
fn pairs(size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size)
        .flat_map(move |one| (0..size).map(move |other| (one, other)))
        .filter(|(one, other)| one != other)
}
