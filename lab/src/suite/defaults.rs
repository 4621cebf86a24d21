//! Learning rates with which the suite runs each algorithm on each task. Open this file when you add an algorithm.
//!
//! Each is the best of a grid of factors of three up to 1, by the loss of the replicas on Dirichlet(1) data of 8 ranks:
//! `cargo run --release -p hexagram-lab --example tune` prints the table anew. On quadratics it is 0.1 wherever that is
//! stable and the algorithm steps along gradients, so that biases, which grow with γ, can be compared. The optimizer is
//! plain SGD for all: algorithms with a momentum or a direction of their own bring it.

/// Options with which the suite runs an algorithm on a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuned {
    /// Learning rate γ.
    pub learning_rate: f64,
}

/// Learning rates by algorithm, for quadratics (with noise and without), digits and text.
const TABLE: &[(&str, [f64; 3])] = &[
    ("gradient-allreduce", [0.1, 1.0, 1.0]),
    ("bytegrad", [0.1, 1.0, 1.0]),
    ("qadam", [0.01, 0.1, 0.01]),
    ("qadam-8bit", [0.1, 0.1, 0.01]),
    ("decentralized", [0.1, 1.0, 1.0]),
    ("low-precision-decentralized", [0.1, 1.0, 1.0]),
    ("async-model-average", [0.1, 1.0, 1.0]),
    ("local-sgd", [0.1, 1.0, 1.0]),
    ("post-local-sgd", [0.1, 1.0, 1.0]),
    ("slowmo", [0.03, 0.3, 1.0]),
    ("diloco", [0.01, 0.3, 0.3]),
    ("streaming-diloco", [0.1, 1.0, 1.0]),
    ("d-psgd", [0.1, 1.0, 1.0]),
    ("gradient-tracking", [0.1, 0.3, 1.0]),
    ("gossip-pga", [0.1, 1.0, 1.0]),
    ("noloco", [0.1, 1.0, 1.0]),
    ("exact-diffusion", [0.1, 1.0, 1.0]),
    ("extra", [0.1, 1.0, 1.0]),
    ("relaysgd", [0.1, 1.0, 1.0]),
    ("qg-dsgdm", [0.01, 1.0, 1.0]),
    ("sgp", [0.1, 1.0, 1.0]),
    ("ad-psgd", [0.1, 1.0, 1.0]),
    ("choco-sgd", [0.1, 1.0, 1.0]),
    ("deepsqueeze", [0.1, 1.0, 1.0]),
    ("compressed-allreduce", [0.1, 1.0, 1.0]),
    ("loco", [0.03, 1.0, 1.0]),
    ("powersgd", [0.1, 1.0, 1.0]),
    ("topk-ef", [0.01, 1.0, 1.0]),
    ("dgc", [0.001, 0.1, 1.0]),
    ("ef21", [0.03, 1.0, 1.0]),
    ("signsgd-vote", [0.01, 0.01, 0.003]),
    ("zero-one-adam", [0.01, 0.03, 0.01]),
    ("easgd", [0.1, 0.3, 1.0]),
    ("ssp", [0.1, 1.0, 1.0]),
    ("compressed-async-model-average", [0.1, 1.0, 1.0]),
    ("compressed-ssp", [0.1, 1.0, 1.0]),
    ("compressed-ad-psgd", [0.1, 1.0, 1.0]),
    ("demo", [0.01, 0.01, 0.01]),
];

/// Returns the options of an algorithm on a task; of one that is not in the table, those of synchronous SGD.
pub fn tuned(algorithm: &str, task: &str) -> Tuned {
    let row = TABLE.iter().find(|(name, _)| *name == algorithm).unwrap_or(&TABLE[0]);
    let column = match task {
        "digits" => 1,
        "text" => 2,
        _ => 0,
    };
    Tuned { learning_rate: row.1[column] }
}
