//! Orderings with data that differ between ranks: local steps and gossip drift, and the methods against drift.

use super::{Claim, ResultMeasure, SKEWED, beats};

/// Claim about data that differ between ranks, judged by the mean of the replicas' own losses.
const fn skewed(better: &'static str, worse: &'static str) -> Claim {
    Claim { partition: SKEWED, ..beats(better, worse, ResultMeasure::OwnLoss) }
}

/// D-PSGD on a ring with gossip after the step, as in the papers below. The default is Lian's, which gossips during
/// the step.
const GOSSIP_AFTER: &str = "d-psgd(adapt-then-combine=true)";

pub(super) const ORDERINGS: &[Claim] = &[
    Claim {
        source: "Koloskova, Lin and Stich, 2202.03836",
        text: "Gradient tracking overcomes differences between ranks' data, which keep gossip SGD away from the optimum",
        task: "quadratics",
        factor: 0.01,
        ..skewed("gradient-tracking(graph=ring)", "d-psgd")
    },
    Claim {
        source: "Tang, Lian, Yan, Zhang and Liu, 1803.07068",
        text: "Where each rank has only some of the labels, D² (exact diffusion) learns better than D-PSGD",
        ..skewed("exact-diffusion", "d-psgd")
    },
    Claim {
        source: "Shi, Ling, Wu and Yin, 1404.6264",
        text: "EXTRA converges to the optimum with a constant step size, where decentralized gradient descent does not",
        task: "quadratics",
        factor: 0.01,
        ..skewed("extra", "d-psgd")
    },
    Claim {
        source: "Vogels et al., 2110.04175",
        text: "RelaySGD on a tree is independent of differences between ranks' data, but gossip is not",
        task: "quadratics",
        changed: "it was on the digits, and compared with gossip during the step; the claim is about bias, and the paper \
                  gossips after the step.",
        ..skewed("relaysgd", GOSSIP_AFTER)
    },
    Claim {
        source: "Lin, Karimireddy, Stich and Jaggi, 2102.04761",
        passage: "abstract, table 1",
        text: "On a ring with Dirichlet(0.1) data, quasi-global momentum learns better than D-PSGD",
        changed: "it compared with gossip during the step; the paper gossips after the step.",
        ..skewed("qg-dsgdm(graph=ring)", GOSSIP_AFTER)
    },
    Claim {
        source: "Khaled, Mishchenko and Richtárik, 1909.04746",
        text: "On heterogeneous data, local SGD ends further from the optimum with more local steps",
        task: "quadratics",
        partition: SKEWED,
        factor: 0.5,
        ..beats("local-sgd", "local-sgd(period=32)", ResultMeasure::Loss)
    },
    Claim {
        source: "Karimireddy et al., 1910.06378",
        text: "On heterogeneous data, local steps drift from the optimum, which synchronous SGD reaches",
        task: "quadratics",
        partition: SKEWED,
        factor: 0.1,
        changed: "it was added after other results were known, to make 40 orderings.",
        ..beats("gradient-allreduce", "local-sgd", ResultMeasure::Loss)
    },
    Claim {
        source: "Hsieh, Phanishayee, Mutlu and Gibbons, 1910.00189",
        text: "On data skewed by label, federated averaging is less accurate than synchronous SGD",
        partition: SKEWED,
        ..beats("gradient-allreduce", "local-sgd(period=16)", ResultMeasure::Errors)
    },
    Claim {
        source: "Chen, Yuan, Zhang, Pan, Xu and Yin, 2105.09080",
        text: "On a large sparse graph, occasional exact means speed up gossip SGD",
        ranks: 25,
        ..skewed("gossip-pga(period=7)", GOSSIP_AFTER)
    },
    Claim {
        source: "Chen, Yuan, Zhang, Pan, Xu and Yin, 2105.09080",
        text: "Gossip between exact means improves on local SGD of the same period",
        ranks: 25,
        ..skewed("gossip-pga(period=7)", "local-sgd(period=7)")
    },
];
