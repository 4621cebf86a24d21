//! Orderings of algorithms with local steps: the effects of the outer optimizer, the inner one, and smaller messages.

use super::{Claim, OrderingVerdict, ResultMeasure, beats};

/// Claim about the loss on held-out text, with equal data on 8 ranks.
const fn of_language(better: &'static str, worse: &'static str) -> Claim {
    Claim { task: "text", ..beats(better, worse, ResultMeasure::Loss) }
}

pub(super) const ORDERINGS: &[Claim] = &[
    Claim {
        source: "Douillard et al., 2311.08105",
        passage: "comparison of outer optimizers",
        text: "An outer Nesterov momentum learns better than the plain mean of the replicas",
        verdict: OrderingVerdict::Fails,
        explanation: "The plain mean permits γ = 1, where `diloco` has 0.3, and ends 3 % lower with all ten seeds. With the \
                      γ of `diloco` it ended 1.5 % higher with four of five seeds. 200 steps are 12 rounds, and a momentum \
                      of 0.9 needs ten rounds to build up; the runs of the paper have a hundred and more.",
        ..of_language("diloco", "diloco(outer=nesterov(learning_rate=1, momentum=0))")
    },
    Claim {
        source: "Wang, Tantia, Ballas and Rabbat, 1910.00643",
        text: "A momentum over rounds of local steps improves on local SGD of the same period",
        ..of_language("slowmo", "local-sgd(period=8)")
    },
    Claim {
        source: "Douillard et al., 2501.18512",
        text: "Sending fragments one after another lowers the traffic peak of DiLoCo",
        factor: 0.3,
        measure: ResultMeasure::PeakBytes,
        changed: "it had ten fragments and a period of 50; all-reduce sends such small fragments whole to all ranks.",
        ..of_language("streaming-diloco(period=48)", "diloco(period=48)")
    },
    Claim {
        source: "Douillard et al., 2501.18512",
        text: "Changes in four bits cost Streaming DiLoCo next to nothing",
        factor: 1.02,
        ..of_language("streaming-diloco(precision=4bit)", "streaming-diloco")
    },
];
