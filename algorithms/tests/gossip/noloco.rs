//! NoLoCo: against the two means of its paper by hand, as an outer SGD over all ranks, and refusals.

use super::*;
use hexagram_algorithms::logical::decentralized::Schedule;

const PAIRS: Topology = Topology::RandomPairs { seed: 5, pairs: None };

/// Makes the steps of the paper in f64, from 0.7: ranks send changes and slow parameters separately.
fn by_hand(algorithm: &NoLoCo, ranks: usize, rate: f64, steps: usize) -> Vec<f64> {
    let mut x = vec![0.7; ranks];
    let mut slow = x.clone();
    let mut momentum = vec![0.0; ranks];
    for step in 1..=steps as u64 {
        x = x.iter().enumerate().map(|(rank, x)| x - rate * problem().gradient(rank, &[*x])[0]).collect();
        if step % algorithm.period != 0 {
            continue;
        }
        let pairs = algorithm.graph.mixing(ranks, step / algorithm.period - 1).unwrap();
        let mixed = |of: &dyn Fn(usize) -> f64, rank: usize| -> f64 {
            pairs.row(rank).iter().map(|(from, weight)| weight * of(*from)).sum()
        };
        let change: Vec<f64> = (0..ranks).map(|rank| mixed(&|from| x[from] - slow[from], rank)).collect();
        let apart: Vec<f64> = (0..ranks).map(|rank| mixed(&|from| slow[from], rank) - slow[rank]).collect();
        for rank in 0..ranks {
            let NoLoCo { outer_rate, outer_momentum, pull, .. } = algorithm;
            momentum[rank] = outer_momentum * momentum[rank] + outer_rate * change[rank] + pull * apart[rank];
            slow[rank] += momentum[rank];
        }
        x.clone_from(&slow);
    }
    x
}

#[test]
fn it_is_its_rule_also_where_a_rank_is_left_over() {
    let own = NoLoCo { graph: Arc::new(PAIRS), period: 3, pull: 0.4, ..NoLoCo::default() };
    for (algorithm, ranks) in [(NoLoCo::default(), 4), (own.clone(), 6), (own, 5), (NoLoCo::default(), 1)] {
        let expected = by_hand(&algorithm, ranks, 0.05, 40);
        assert_near(&train_quadratics(ranks, &algorithm.into(), 0.05, 40), &expected, 1e-13);
    }
}

#[test]
fn a_rank_that_is_left_over_steps_with_its_own_change() {
    // In the first round, of one step.
    let pairs = PAIRS.mixing(5, 0).unwrap();
    let alone = (0..5).find(|rank| pairs.sources(*rank).is_empty()).unwrap();
    let algorithm = NoLoCo { graph: Arc::new(PAIRS), period: 1, ..NoLoCo::default() };
    let found = train_quadratics(5, &algorithm.into(), 0.05, 1);
    let expected = 0.7 - 0.7 * 0.05 * problem().gradient(alone, &[0.7])[0];
    assert_near(&[found[alone]], &[expected], 1e-14);
}

#[test]
fn the_mean_of_all_is_that_of_an_outer_sgd_and_ranks_come_together() {
    // Gradients that do not depend on x: in 12 rounds, then none.
    let gradient =
        |rank: usize, step: usize| if step < 48 { ((rank * 5 + step * 3) % 7) as f64 - 2.0 } else { 0.0 };
    let algorithm = NoLoCo { period: 4, ..NoLoCo::default() };
    let mut slow = 2.0;
    let mut momentum = 0.0;
    for round in 0..60 {
        let steps = round * 4..round * 4 + 4;
        let all = steps.flat_map(|step| (0..6).map(move |rank| gradient(rank, step)));
        momentum = 0.5 * momentum - 0.7 * 0.1 * all.sum::<f64>() / 6.0;
        slow += momentum;
    }
    let given = |rank: usize, step: usize, x: &[f64]| vec![gradient(rank, step); x.len()];
    let place = (TransportKind::Thread, 6);
    let after =
        |steps| train(place, &algorithm.clone().into(), &Setup::default(), &[2.0], steps, given).unwrap();
    let found: Vec<f64> = after(240).into_iter().map(|x| x[0]).collect();
    assert!((mean(&found) - slow).abs() < 1e-12, "{found:?} and not {slow}");
    assert_near(&found, &[slow; 6], 1e-4);
    let early: Vec<f64> = after(48).into_iter().map(|x| x[0]).collect();
    assert!(early.iter().any(|x| (x - mean(&early)).abs() > 1e-3), "they were apart: {early:?}");
}

#[test]
fn a_pull_that_drives_ranks_apart_is_refused() {
    let wrong = NoLoCo { outer_momentum: 0.9, ..NoLoCo::default() };
    let error = refusal(2, &wrong.into()).to_string();
    assert!(error.starts_with("pull of noloco is 0.7; choose less than 2 (1 − outer_momentum²)"), "{error}");
    registry::named("noloco(outer_momentum=0.9, pull=0.3)").unwrap();
}
