//! Exact diffusion and EXTRA: against the two-term recursions of their authors, at the optimum that D-PSGD misses, and
//! refusals.

use super::*;
use hexagram_algorithms::logical::decentralized::Schedule;

fn diffusion(graph: impl Schedule + 'static) -> Algorithm {
    ExactDiffusion { graph: Arc::new(graph) }.into()
}

fn extra(graph: impl Schedule + 'static) -> Algorithm {
    Extra { graph: Arc::new(graph) }.into()
}

/// W x, or with `half` (I + W) x / 2.
fn mixed(graph: Topology, x: &[f64], half: bool) -> Vec<f64> {
    let w = graph.mixing(x.len(), 0).unwrap();
    let row = |rank: usize| w.row(rank).iter().map(|(from, weight)| weight * x[*from]).sum::<f64>();
    (0..x.len()).map(|rank| if half { (row(rank) + x[rank]) / 2.0 } else { row(rank) }).collect()
}

fn gradients(x: &[f64]) -> Vec<f64> {
    x.iter().enumerate().map(|(rank, x)| problem().gradient(rank, &[*x])[0]).collect()
}

fn each(len: usize, of: impl Fn(usize) -> f64) -> Vec<f64> {
    (0..len).map(of).collect()
}

#[test]
fn exact_diffusion_is_d2_with_lazy_weights() {
    for (graph, ranks) in [(Topology::Ring, 5), (Topology::Star, 4)] {
        let mut before = vec![0.7; ranks];
        let first = gradients(&before);
        let mut x = mixed(graph, &each(ranks, |i| before[i] - 0.1 * first[i]), true);
        for _ in 1..25 {
            let g = gradients(&x);
            let old = gradients(&before);
            let next = each(ranks, |i| 2.0 * x[i] - before[i] - 0.1 * (g[i] - old[i]));
            before = std::mem::replace(&mut x, mixed(graph, &next, true));
        }
        assert_near(&train_quadratics(ranks, &diffusion(graph), 0.1, 25), &x, 1e-13);
    }
}

#[test]
fn extra_is_its_authors_recursion() {
    for (graph, ranks) in [(Topology::Ring, 5), (Topology::Star, 4)] {
        let mut before = vec![0.7; ranks];
        let first = gradients(&before);
        let w = mixed(graph, &before, false);
        let mut x = each(ranks, |i| w[i] - 0.1 * first[i]);
        for _ in 1..25 {
            let g = gradients(&x);
            let old = gradients(&before);
            let now = mixed(graph, &x, false);
            let then = mixed(graph, &before, true);
            let next = each(ranks, |i| x[i] + now[i] - then[i] - 0.1 * (g[i] - old[i]));
            before = std::mem::replace(&mut x, next);
        }
        assert_near(&train_quadratics(ranks, &extra(graph), 0.1, 25), &x, 1e-13);
    }
}

#[test]
fn they_reach_the_optimum() {
    for made in [diffusion as fn(Topology) -> Algorithm, extra] {
        for (graph, ranks) in [(Topology::Ring, 4), (Topology::Star, 5)] {
            let found = train_quadratics(ranks, &made(graph), 0.1, 300);
            assert_near(&found, &vec![optimum(ranks); ranks], 1e-6);
        }
    }
    let missed = train_quadratics(4, &DPsgd::default().into(), 0.1, 200);
    assert!(missed.iter().any(|x| (x - optimum(4)).abs() > 0.05), "{missed:?}");
}

#[test]
fn one_rank_descends_its_own_gradient() {
    for algorithm in [diffusion(Topology::Ring), extra(Topology::Ring)] {
        assert_near(&train_quadratics(1, &algorithm, 0.1, 400), &[0.0], 1e-15);
    }
}

#[test]
fn graphs_that_change_or_have_one_direction_are_refused() {
    for made in [diffusion as fn(Topology) -> Algorithm, extra] {
        for graph in [Topology::OnePeerExponential, Topology::Exponential] {
            let error = refusal(5, &made(graph)).to_string();
            assert!(
                error.contains("the same symmetric matrix") && error.contains("gradient-tracking"),
                "{error}"
            );
        }
    }
}
