//! QG-DSGDm: against its rule by hand, as D-PSGD without momentum, and refusals.

use super::*;
use hexagram_algorithms::logical::decentralized::Schedule;

#[test]
fn it_is_its_rule() {
    for (graph, ranks) in [(Topology::Ring, 5), (Topology::OnePeerExponential, 4)] {
        let mut x = vec![0.7; ranks];
        let mut m = vec![0.0; ranks];
        for step in 0..20 {
            let w = graph.mixing(ranks, step).unwrap();
            let taken: Vec<f64> = (0..ranks)
                .map(|rank| x[rank] - 0.05 * (problem().gradient(rank, &[x[rank]])[0] + 0.8 * m[rank]))
                .collect();
            let row =
                |rank: usize| w.row(rank).iter().map(|(from, weight)| weight * taken[*from]).sum::<f64>();
            let next: Vec<f64> = (0..ranks).map(row).collect();
            for rank in 0..ranks {
                m[rank] = 0.7 * m[rank] + 0.3 * (x[rank] - next[rank]) / 0.05;
            }
            x = next;
        }
        let algorithm = QgDsgdm { gossip: Gossip::over(graph), momentum: 0.8, decay: 0.7 };
        assert_near(&train_quadratics(ranks, &algorithm.into(), 0.05, 20), &x, 1e-13);
    }
}

#[test]
fn without_momentum_it_is_d_psgd() {
    let none = QgDsgdm { momentum: 0.0, ..QgDsgdm::default() };
    let plain = DPsgd { adapt_then_combine: true, ..DPsgd::with(Topology::OnePeerExponential) };
    let found = train_quadratics(5, &none.into(), 0.1, 30);
    assert_near(&found, &train_quadratics(5, &plain.into(), 0.1, 30), 0.0);
}

#[test]
fn momenta_that_are_none_are_refused() {
    let error = refusal(2, &QgDsgdm { momentum: 1.0, ..QgDsgdm::default() }.into()).to_string();
    assert!(error.contains("momentum"), "{error}");
    let error = refusal(2, &QgDsgdm { decay: -0.1, ..QgDsgdm::default() }.into()).to_string();
    assert!(error.contains("decay"), "{error}");
}
