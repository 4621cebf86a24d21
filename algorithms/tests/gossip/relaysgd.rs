//! RelaySGD: against the delayed mean that its relays compute, at the global optimum.

use super::*;
use hexagram_algorithms::relaysgd::Tree;

/// The number of edges between two ranks.
fn hops(tree: Tree, size: usize, from: usize, to: usize) -> usize {
    let mut reached = vec![from];
    for hop in 0.. {
        if reached.contains(&to) {
            return hop;
        }
        reached =
            reached.iter().flat_map(|rank| tree.neighbours(*rank, size)).chain(reached.clone()).collect();
    }
    unreachable!()
}

#[test]
fn everyone_has_the_mean_of_all_as_old_as_they_are_far() {
    for (tree, ranks) in [(Tree::Chain, 4), (Tree::Binary, 6), (Tree::Binary, 1)] {
        let mut x = vec![0.7; ranks];
        // Parameters after every step, the newest last.
        let mut stepped = vec![x.clone()];
        for _ in 0..20 {
            let one = |(rank, x): (usize, &f64)| x - 0.05 * problem().gradient(rank, &[*x])[0];
            stepped.push(x.iter().enumerate().map(one).collect());
            let heard = |to: usize, from: usize| {
                let late = hops(tree, ranks, from, to).saturating_sub(1);
                stepped[(stepped.len() - 1).saturating_sub(late)][from]
            };
            x = (0..ranks)
                .map(|to| mean(&(0..ranks).map(|from| heard(to, from)).collect::<Vec<_>>()))
                .collect();
        }
        assert_near(&train_quadratics(ranks, &RelaySgd { tree }.into(), 0.05, 20), &x, 1e-13);
    }
}

#[test]
fn it_reaches_the_optimum() {
    for (tree, ranks) in [(Tree::Chain, 4), (Tree::Binary, 5)] {
        let found = train_quadratics(ranks, &RelaySgd { tree }.into(), 0.1, 250);
        assert_near(&found, &vec![optimum(ranks); ranks], 1e-9);
    }
}

/// If all ranks have curvature L, neighbours oscillate against each other from γ L = 1 + n/2 on, on any tree: a γ that
/// many ranks tolerate may be too large for few.
#[test]
fn of_one_curvature_it_bears_a_step_of_1_and_half_the_ranks() {
    for (tree, ranks) in [(Tree::Chain, 3), (Tree::Binary, 8)] {
        let farthest = |rate: f64| {
            let setup = Setup { learning_rate: rate, ..Setup::default() };
            let gradient = |rank: usize, _: usize, x: &[f64]| vec![x[0] - rank as f64];
            let setting = (TransportKind::Thread, ranks);
            let found = train(setting, &RelaySgd { tree }.into(), &setup, &[0.7], 300, gradient).unwrap();
            let optimum = (ranks - 1) as f64 / 2.0;
            found.iter().map(|x| (x[0] - optimum).abs()).fold(0.0, f64::max)
        };
        let bound = 1.0 + ranks as f64 / 2.0;
        let settled = farthest(0.9 * bound);
        let swung = farthest(1.1 * bound);
        assert!(settled < 1.0 && swung > 1e3, "{tree:?}, {ranks} ranks: {settled} and {swung}");
    }
}
