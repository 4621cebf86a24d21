//! Step sizes with which the suite runs each algorithm on each task.
//!
//! Tuning with `suite::tune` found those of the noisy quadratics, the digits and the text: `cargo run --release -p
//! hexagram-lab --example tune` prints the rows again. Those of the quadratics without noise were chosen by hand: 0.1
//! wherever that is stable and the algorithm steps along gradients. So their biases, which grow with γ, are
//! comparable. The optimizer is plain SGD for all except `muloco`, which names Muon: algorithms with a momentum or a
//! direction bring their own.

use hexagram::algorithms::registry;
use hexagram::{AnyAlgorithm, Result};

/// Step sizes with which the suite runs an algorithm on a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuned {
    /// Learning rate γ.
    pub learning_rate: f64,
    /// Second step size, as an option of the algorithm; empty for its default.
    pub option: &'static str,
}

/// Tasks of the columns.
const TASKS: [&str; 5] = ["quadratics", "noisy-quadratics", "digits", "text", "convolutional"];

/// Learning rates by algorithm and task. The last are for the small convolutional net of candle's example on the
/// digits, which is no task of the suite.
const RATES: &[(&str, [f64; 5])] = &[
    ("gradient-allreduce", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("bytegrad", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("qadam", [0.01, 0.01, 0.1, 0.01, 0.002]),
    ("qadam-8bit", [0.1, 0.01, 0.1, 0.01, 0.002]),
    ("decentralized", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("low-precision-decentralized", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("async-model-average", [0.1, 0.01, 0.3, 1.0, 0.15]),
    ("local-sgd", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("post-local-sgd", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("slowmo", [0.03, 0.003, 0.3, 1.0, 0.1]),
    ("diloco", [0.01, 0.01, 0.3, 0.3, 0.05]),
    ("streaming-diloco", [0.1, 0.003, 0.3, 1.0, 0.15]),
    ("muloco", [0.01, 0.01, 0.01, 0.01, 0.005]),
    ("sparse-loco", [0.01, 0.01, 0.3, 1.0, 0.15]),
    ("noloco", [0.1, 0.01, 0.3, 1.0, 0.15]),
    ("d-psgd", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("gradient-tracking", [0.1, 0.01, 0.3, 1.0, 0.15]),
    ("gossip-pga", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("exact-diffusion", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("extra", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("qg-dsgdm", [0.01, 0.003, 1.0, 1.0, 0.015]),
    ("relaysgd", [0.1, 0.03, 1.0, 3.0, 0.15]),
    ("sgp", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("ad-psgd", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("choco-sgd", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("deepsqueeze", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("compressed-allreduce", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("loco", [0.03, 0.01, 1.0, 1.0, 0.15]),
    ("powersgd", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("dion", [0.03, 0.03, 0.03, 0.03, 0.005]),
    ("topk-ef", [0.01, 0.01, 1.0, 1.0, 0.15]),
    ("dgc", [0.001, 0.001, 0.3, 0.3, 0.015]),
    ("ef21", [0.03, 0.01, 3.0, 3.0, 0.15]),
    ("signsgd-vote", [0.01, 0.01, 0.01, 0.003, 0.0005]),
    ("zero-one-adam", [0.01, 0.01, 0.03, 0.01, 0.001]),
    ("easgd", [0.1, 0.01, 0.3, 1.0, 0.15]),
    ("ssp", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("demo", [0.01, 0.01, 0.01, 0.01, 0.001]),
    ("compressed-async-model-average", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("compressed-ssp", [0.1, 0.01, 1.0, 1.0, 0.15]),
    ("compressed-ad-psgd", [0.1, 0.01, 1.0, 1.0, 0.15]),
];

/// Second step sizes by algorithm and task.
const SECOND: &[(&str, [&str; 4])] = &[
    ("slowmo", ["", "slow_rate=2", "slow_rate=2", "slow_rate=1"]),
    (
        "diloco",
        [
            "",
            "outer=nesterov(learning_rate=0.7)",
            "outer=nesterov(learning_rate=1.4)",
            "outer=nesterov(learning_rate=1.4)",
        ],
    ),
    (
        "streaming-diloco",
        [
            "",
            "outer=nesterov(learning_rate=1.6)",
            "outer=nesterov(learning_rate=1.6)",
            "outer=nesterov(learning_rate=0.8)",
        ],
    ),
    ("noloco", ["", "outer_rate=0.35", "outer_rate=1.4", "outer_rate=0.7"]),
    ("choco-sgd", ["", "consensus=0.9", "consensus=0.9", "consensus=0.9"]),
    ("deepsqueeze", ["", "consensus=1", "consensus=1", "consensus=1"]),
    ("easgd", ["", "beta=0.9", "beta=0.9", "beta=0.9"]),
];

/// Learning rates of variants with options on the task of their orderings, where they differ from those of their algorithms.
const VARIANTS: &[(&str, &str, f64)] = &[
    ("compressed-allreduce(codec=qsgd(levels=1))", "digits", 0.3),
    ("compressed-allreduce(codec=random-k(2%), feedback=error)", "digits", 0.3),
    ("compressed-allreduce(codec=sign, feedback=two-level)", "digits", 3.0),
    ("diloco(outer=nesterov(learning_rate=1, momentum=0))", "text", 1.0),
    ("ef21(momentum=0)", "digits", 1.0),
    ("local-sgd(period=16)", "digits", 0.3),
    ("local-sgd(period=7)", "digits", 0.3),
    ("streaming-diloco(period=48)", "text", 0.3),
];

impl Tuned {
    /// Returns the algorithm with the tuned second step size, unless the options set one.
    ///
    /// # Errors
    /// As [`registry::named`], if the option is not one of the algorithm.
    pub fn applied(&self, algorithm: &AnyAlgorithm) -> Result<AnyAlgorithm> {
        let spelled = algorithm.to_string();
        let field = self.option.split_inclusive('=').next().unwrap_or_default();
        if self.option.is_empty() || spelled.contains(field) {
            return Ok(algorithm.clone());
        }
        match spelled.strip_suffix(')') {
            None => registry::named(&format!("{spelled}({})", self.option)),
            Some(open) => registry::named(&format!("{open}, {})", self.option)),
        }
    }
}

/// Returns the step sizes of an algorithm on a task, by its name or by the spelling of a variant; for one outside the
/// tables, those of synchronous SGD.
pub fn tuned(spelling: &str, task: &str) -> Tuned {
    let algorithm = spelling.split('(').next().unwrap_or_default();
    let variant = VARIANTS.iter().find(|(known, on, _)| (*known, *on) == (spelling, task));
    let column = TASKS.iter().position(|known| *known == task).unwrap_or(0);
    let rates = RATES.iter().find(|(name, _)| *name == algorithm).unwrap_or(&RATES[0]);
    let second = SECOND.iter().find(|(name, _)| *name == algorithm);
    let learning_rate = variant.map_or(rates.1[column], |(.., rate)| *rate);
    Tuned {
        learning_rate,
        option: second.map_or("", |(_, options)| options.get(column).copied().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_was_tuned() {
        for algorithm in registry::all() {
            assert!(
                RATES.iter().any(|(name, _)| *name == algorithm.name()),
                "{algorithm}: run the example tune"
            );
        }
    }

    #[test]
    fn a_second_step_size_is_applied_unless_it_is_given() {
        let applied = |text: &str| {
            let algorithm = registry::named(text).unwrap();
            tuned(algorithm.name(), "digits").applied(&algorithm).unwrap().to_string()
        };
        assert_eq!(applied("d-psgd"), "d-psgd");
        assert_eq!(applied("deepsqueeze"), "deepsqueeze(consensus=1)");
        assert_eq!(
            applied("diloco(period=50)"),
            "diloco(period=50, outer=nesterov(learning_rate=1.4, momentum=0.9))"
        );
        assert_eq!(applied("choco-sgd(consensus=auto)"), "choco-sgd(consensus=auto)");
    }
}
