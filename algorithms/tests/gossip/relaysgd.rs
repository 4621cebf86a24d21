//! RelaySGD: against the delayed mean that its relays add up to, at the optimum of all.

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
        // Stepped parameters of all steps, the newest last.
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
