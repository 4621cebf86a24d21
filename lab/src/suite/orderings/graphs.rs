//! Orderings of graphs: how near to each other gossip keeps the replicas, and how well they learn.

use super::{Claim, OrderingVerdict, ResultMeasure, SKEWED, beats};

/// Claim about gossip after the step, as these papers define it, on 25 ranks with data that differ.
const fn over(better: &'static str, worse: &'static str, measure: ResultMeasure) -> Claim {
    Claim { partition: SKEWED, ranks: 25, ..beats(better, worse, measure) }
}

const RING: &str = "d-psgd(adapt-then-combine=true)";

pub(super) const ORDERINGS: &[Claim] = &[
    Claim {
        source: "Ying, Yuan, Chen, Hu, Pan and Yin, 2110.13363",
        text: "On many ranks the exponential graph averages better than the ring",
        factor: 0.7,
        ..over("d-psgd(graph=exponential, adapt-then-combine=true)", RING, ResultMeasure::Consensus)
    },
    Claim {
        source: "Takezawa, Sato, Bao, Niwa and Yamada, 2305.11420",
        text: "With 25 ranks and Dirichlet(0.1) data the Base-2 graph learns better than the ring, at half of its bytes",
        verdict: OrderingVerdict::Fails,
        explanation: "The ordering holds for six of ten seeds, and one seed has nearly three times the loss, so the runs do \
                      not distinguish the graphs, at 44 % of the bytes. Replicas are closer to each other (0.66 against \
                      1.01). But the loss of a single replica depends on its last steps on few labels, after which it \
                      averages with one partner here and with two on the ring, which may be the reason.",
        ..over("d-psgd(graph=base, adapt-then-combine=true)", RING, ResultMeasure::OwnLoss)
    },
    Claim {
        source: "Koloskova, Stich and Jaggi, 1902.00340",
        passage: "table 1",
        text: "A torus mixes faster than a ring",
        ..over("d-psgd(graph=torus, adapt-then-combine=true)", RING, ResultMeasure::Consensus)
    },
];
