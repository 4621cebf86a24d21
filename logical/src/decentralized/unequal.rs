//! Mixing among members that represent different numbers of ranks, such as hosts: the mean to preserve is that of all
//! ranks.
//!
//! kᵢ is the number of ranks of member i, and n their sum. With W doubly stochastic and P column-stochastic:
//!
//! ```text
//! gossip      Σᵢ kᵢ xᵢ is to be kept: k W′ = k, and the rows of W′ add up to 1
//!   W symmetric       w′ᵢⱼ = wᵢⱼ · 2 kⱼ / (kᵢ + kⱼ)      if no row asks for more than 1: pairs come to their mean
//!                     w′ᵢⱼ = wᵢⱼ · min(1, kⱼ / kᵢ)       otherwise (Metropolis and Hastings)
//!   any other W       w′ᵢⱼ = wᵢⱼ · min k / kᵢ            W′ = I − min k · K⁻¹ (I − W)
//!                     w′ᵢᵢ = 1 − Σⱼ w′ᵢⱼ
//! push-sum    p′ᵢⱼ = pᵢⱼ · kⱼ / kᵢ                      K⁻¹ P K: what is pushed is the sum of a member's ranks
//! ```
//!
//! Since wᵢⱼ kᵢ min(1, kⱼ/kᵢ) and wᵢⱼ · 2 kᵢ kⱼ / (kᵢ + kⱼ) are symmetric, k W′ = k; in the third line k W′ = k − min
//! k · 1ᵀ(I − W) = k. If all kᵢ are equal, weights are unchanged, bit for bit. The graph is the same, so ranks send
//! the same messages. Agreement takes longer the more the kᵢ differ, except with push-sum.

use super::mixing::Mixing;

impl Mixing {
    /// Returns the matrix that preserves the mean over ranks, where member i represents `ranks[i]` of them, from one
    /// that preserves the mean over members.
    pub(super) fn for_means_of(self, ranks: &[usize]) -> Mixing {
        if is_even(ranks) {
            return self;
        }
        let share = |member: usize| ranks[member] as f64;
        if !self.is_symmetric() {
            let least = ranks.iter().copied().min().unwrap_or(1) as f64;
            return self.balanced(|to, _| least / share(to));
        }
        let of_pairs = self.balanced(|to, from| 2.0 * share(from) / (share(to) + share(from)));
        if (0..self.size()).all(|member| of_pairs.weight(member, member) >= 0.0) {
            return of_pairs;
        }
        self.balanced(|to, from| (share(from) / share(to)).min(1.0))
    }

    /// Returns the matrix that pushes sums over ranks, given their means, from one that pushes numbers of members.
    pub(super) fn for_sums_of(self, ranks: &[usize]) -> Mixing {
        if is_even(ranks) {
            return self;
        }
        let own = (0..self.size()).map(|member| self.weight(member, member)).collect();
        self.reweighted(own, |to, from, weight| weight * ranks[from] as f64 / ranks[to] as f64)
    }

    /// Multiplies the weights of others by `factor(to, from)`, and leaves the rest as the own weight.
    fn balanced(&self, factor: impl Fn(usize, usize) -> f64) -> Mixing {
        let freed = |to: usize| -> f64 {
            self.sources(to).iter().map(|(from, weight)| weight * (1.0 - factor(to, *from))).sum()
        };
        let own = (0..self.size()).map(|member| self.weight(member, member) + freed(member)).collect();
        self.reweighted(own, |to, from, weight| weight * factor(to, from))
    }
}

fn is_even(ranks: &[usize]) -> bool {
    ranks.windows(2).all(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::super::{Schedule, Topology};
    use super::*;

    const GRAPHS: [Topology; 7] = [
        Topology::Ring,
        Topology::Exponential,
        Topology::OnePeerExponential,
        Topology::XorPairs,
        Topology::Star,
        Topology::Complete,
        Topology::RandomPairs { seed: 3, pairs: None },
    ];

    /// Returns Σᵢ kᵢ wᵢⱼ of every column j.
    fn columns(mixing: &Mixing, ranks: &[usize]) -> Vec<f64> {
        let of =
            |from: usize| (0..ranks.len()).map(move |to| ranks[to] as f64 * mixing.weight(to, from)).sum();
        (0..ranks.len()).map(of).collect()
    }

    fn near(found: &[f64], ranks: &[usize]) {
        for (one, other) in found.iter().zip(ranks) {
            assert!((one - *other as f64).abs() < 1e-12, "{found:?} of {ranks:?}");
        }
    }

    #[test]
    fn rows_add_up_to_1_and_the_mean_over_ranks_is_kept() {
        for ranks in [&[3, 2, 1][..], &[1, 8, 1, 4], &[7, 1], &[5, 1, 1, 1, 1, 9, 2, 2]] {
            for (graph, step) in GRAPHS.into_iter().flat_map(|graph| (0..4).map(move |step| (graph, step))) {
                let plain = graph.mixing(ranks.len(), step).unwrap();
                let weighed = plain.clone().for_means_of(ranks);
                assert!(weighed.is_row_stochastic(), "{graph:?} of {ranks:?}: {weighed:?}");
                near(&columns(&weighed, ranks), ranks);
                for member in 0..ranks.len() {
                    assert_eq!(weighed.destinations(member), plain.destinations(member), "what is sent");
                }
                near(&columns(&plain.for_sums_of(ranks), ranks), ranks);
            }
        }
    }

    #[test]
    fn members_of_a_pair_come_to_the_mean_of_their_ranks() {
        let pair = Topology::XorPairs.mixing(2, 0).unwrap().for_means_of(&[3, 1]);
        assert_eq!(pair.dense(), [0.75, 0.25, 0.75, 0.25]);
    }

    #[test]
    fn equal_members_mix_as_ever_bit_for_bit() {
        for graph in GRAPHS {
            let plain = graph.mixing(6, 1).unwrap();
            assert_eq!(plain.clone().for_means_of(&[3; 6]), plain);
            assert_eq!(plain.clone().for_sums_of(&[3; 6]), plain);
        }
    }
}
