//! EquiTopo: circulant graphs of random hops, whose contraction does not depend on the number of ranks.
//!
//! ```text
//! A⁽ᵃ⁾ = (n−1)/n · (rank i takes from i + a) + 1/n · I,       a in 1..n
//! static       W = mean of A⁽ᵃ⁾ over M hops a, drawn with replacement            D-EquiStatic
//! one peer     W = (I + A⁽ᵃ⁾) / 2 with another hop a drawn at every step        OD-EquiDyn, η = 1/2
//! ```
//!
//! The mean of A⁽ᵃ⁾ over all hops is the exact mean of all ranks; M of them are near it. Source: Song, Li, Jin, Shi,
//! Yan, Yin and Yuan, "Communication-efficient topologies for decentralized learning with O(1) consensus rate",
//! NeurIPS 2022.

use super::super::mixing::{Edge, Mixing};
use crate::Result;
use crate::encoding::mix;
use std::collections::BTreeMap;

/// Returns the static matrix of `hops` hops, 1 or more.
pub(super) fn fixed(size: usize, seed: u64, hops: usize) -> Result<Mixing> {
    circulant(size, (0..hops as u64).map(|draw| (hop(size, mix(seed ^ mix(draw))), 1.0 / hops as f64)))
}

/// Returns the matrix of one hop, drawn for the step, with weight one half.
pub(super) fn one_peer(size: usize, seed: u64, step: u64) -> Result<Mixing> {
    circulant(size, [(hop(size, mix(seed ^ mix(step))), 0.5)])
}

/// Returns a hop from 1 to n − 1; 0 with one rank. The bias of the remainder is below 2⁻³² for any number of ranks.
fn hop(size: usize, draw: u64) -> usize {
    draw.checked_rem(size.saturating_sub(1) as u64).map_or(0, |hop| hop as usize + 1)
}

/// Returns the matrix with these shares of A⁽ᵃ⁾; a rank keeps the rest.
fn circulant(size: usize, shares: impl IntoIterator<Item = (usize, f64)>) -> Result<Mixing> {
    let taken = size.saturating_sub(1) as f64 / size as f64;
    let mut weights: BTreeMap<usize, f64> = BTreeMap::new();
    for (hop, share) in shares.into_iter().filter(|(hop, _)| *hop > 0) {
        *weights.entry(hop).or_default() += share * taken;
    }
    let own = 1.0 - weights.values().sum::<f64>();
    let edge = |to: usize, (hop, weight): (&usize, &f64)| Edge {
        from: (to + hop) % size,
        to,
        source: *weight,
        destination: 1.0,
    };
    let edges: Vec<Edge> =
        (0..size).flat_map(|to| weights.iter().map(move |weight| edge(to, weight))).collect();
    Mixing::of_edges(vec![own; size], &edges)
}
