//! Orderings of algorithms with local steps: what the outer optimizer, the inner one, and smaller messages do.

use super::{Claim, Measure, Verdict, beats};

/// Claim about the loss on held-out text, with like data on 8 ranks.
const fn of_language(better: &'static str, worse: &'static str) -> Claim {
    Claim { task: "text", ..beats(better, worse, Measure::Loss) }
}

pub(super) const ORDERINGS: &[Claim] = &[
    Claim {
        source: "Douillard et al., 2311.08105",
        passage: "comparison of outer optimizers",
        text: "Nesterov's momentum outside learns better than the plain mean of the replicas",
        verdict: Verdict::Undecided,
        explanation: "Four of five seeds have it so, and the mean is 1.5 % lower. 200 steps are 12 rounds, and a momentum of 0.9 \
                      takes ten to come up to speed; the paper's runs have a hundred and more. γ was found with the momentum: \
                      without it, 1 in place of 0.3 ends 3 % lower than `diloco` (1 to 5 %).",
        ..of_language("diloco", "diloco(outer=nesterov(learning_rate=1, momentum=0))")
    },
    Claim {
        source: "Wang, Tantia, Ballas and Rabbat, 1910.00643",
        text: "A momentum over rounds of local steps improves on local SGD of the same period",
        ..of_language("slowmo", "local-sgd(period=8)")
    },
    Claim {
        source: "Douillard et al., 2501.18512",
        text: "Fragments one after another lower the peak of DiLoCo's traffic",
        factor: 0.3,
        measure: Measure::PeakBytes,
        changed: "it was with ten fragments and a period of 50; all-reduce sends fragments so small whole to everyone.",
        ..of_language("streaming-diloco(period=48)", "diloco(period=48)")
    },
    Claim {
        source: "Douillard et al., 2501.18512",
        text: "Changes in four bits cost Streaming DiLoCo next to nothing",
        factor: 1.02,
        ..of_language("streaming-diloco(precision=4bit)", "streaming-diloco")
    },
];
