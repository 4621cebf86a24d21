//! Orderings of codecs, and of the compensation of their errors.

use super::{Claim, OrderingVerdict, ResultMeasure, SKEWED, beats};

/// Claim about the loss on quadratics with data that differ between ranks, where nothing but codecs and drift keeps an
/// algorithm from the optimum.
const fn without_noise(better: &'static str, worse: &'static str) -> Claim {
    Claim { task: "quadratics", partition: SKEWED, ..beats(better, worse, ResultMeasure::Loss) }
}

pub(super) const ORDERINGS: &[Claim] = &[
    Claim {
        source: "Karimireddy, Rebjock, Stich and Jaggi, 1901.09847",
        text: "On convex functions, signs with error feedback end nearer to the optimum than signSGD",
        changed: "it said that signs with feedback converge and signSGD does not; with a constant step neither reaches the \
                  optimum.",
        ..without_noise("compressed-allreduce(codec=sign, feedback=error)", "signsgd-vote(momentum=0)")
    },
    Claim {
        source: "Zheng, Huang and Kwok, 1905.10936",
        text: "Blockwise signs both ways, with error feedback, converge where majority votes can diverge",
        partition: SKEWED,
        ..beats("compressed-allreduce(codec=sign, feedback=two-level)", "signsgd-vote", ResultMeasure::Loss)
    },
    Claim {
        source: "Tang, Yu, Lian, Zhang and Liu, 1905.05957",
        text: "Error feedback on both passes converges better than the same codec without it",
        ..without_noise(
            "compressed-allreduce(codec=int4, feedback=two-level)",
            "compressed-allreduce(codec=int4)",
        )
    },
    Claim {
        source: "Stich, Cordonnier and Jaggi, 1809.07599",
        passage: "figure 2",
        text: "With memory, the largest elements converge faster than the same number of random ones",
        ..beats(
            "compressed-allreduce(codec=top-k(2%), feedback=error)",
            "compressed-allreduce(codec=random-k(2%), feedback=error)",
            ResultMeasure::Loss,
        )
    },
    Claim {
        source: "Richtárik, Sokolov and Fatkhullin, 2106.05203",
        text: "With exact gradients EF21 converges, where error feedback stops short of the optimum",
        ..without_noise("ef21(momentum=0)", "topk-ef(fraction=0.05)")
    },
    Claim {
        source: "Fatkhullin, Tyurin and Richtárik, 2305.15155",
        text: "With small batches EF21 needs a momentum",
        ..beats("ef21", "ef21(momentum=0)", ResultMeasure::Loss)
    },
    Claim {
        source: "Vogels, Karimireddy and Jaggi, 1905.13727",
        passage: "analysis, effect of error feedback",
        text: "Low-rank gradients need error feedback",
        ..beats(
            "compressed-allreduce(codec=low-rank(rank=2, saving=2), feedback=error)",
            "compressed-allreduce(codec=low-rank(rank=2, saving=2))",
            ResultMeasure::Loss,
        )
    },
    Claim {
        source: "Vogels, Karimireddy and Jaggi, 1905.13727",
        passage: "results, comparison with other compressors",
        text: "PowerSGD learns a language better than Signum (signs of momenta by majority)",
        task: "text",
        verdict: OrderingVerdict::Fails,
        explanation: "Here all-reduce in full precision also loses to the signs, and PowerSGD does not lose to all-reduce. \
                      The signs win because all elements take steps of equal size, as with Adam, which suits a transformer. \
                      The paper's language model is an LSTM.",
        ..beats("powersgd", "signsgd-vote", ResultMeasure::Loss)
    },
    Claim {
        source: "Alistarh, Grubic, Li, Tomioka and Vojnovic, 1610.02132",
        text: "Fewer levels of quantization mean more variance, and slower convergence",
        ..beats(
            "compressed-allreduce(codec=qsgd(levels=127))",
            "compressed-allreduce(codec=qsgd(levels=1))",
            ResultMeasure::Loss,
        )
    },
    Claim {
        source: "Xie, Lin, Toh and Zhou, 2407.04480",
        text: "The mean of earlier errors compensates for the losses of gradients in four bits",
        ..without_noise("loco", "compressed-allreduce(codec=int4)")
    },
    Claim {
        source: "Koloskova, Stich and Jaggi, 1902.00340",
        passage: "experiments, against DCD",
        text: "CHOCO-SGD converges with sparse random messages, with which difference compression (DCD) diverges",
        ..without_noise(
            "choco-sgd(codec=random-k(10%), consensus=auto)",
            "low-precision-decentralized(codec=random-k(10%, unbiased=true, not_finite=propagate))",
        )
    },
];
