//! With which learning rate each algorithm learns the digits. Open this file when you add an algorithm, or
//! ask why one trains differently from another.
//!
//! All are chosen for 4 ranks with batches of 16, for which synchronous SGD has a learning rate of 0.15. Algorithms
//! that bring their own direction, or whose proof is of SGD, have plain SGD; a rate that is lower than 0.15 says that
//! the algorithm's noise, or its delay, does not stand the higher one.

/// Options with which an algorithm is run, unless the command line says otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// Learning rate γ.
    pub learning_rate: f64,
}

const fn sgd(algorithm: &'static str, learning_rate: f64) -> Defaults {
    Defaults { algorithm, learning_rate }
}

/// Every algorithm of the registry.
pub const ALL: &[Defaults] = &[
    sgd("gradient-allreduce", 0.15),
    // Eight bits are as good as the gradient itself.
    sgd("bytegrad", 0.15),
    // Directions of Adam's size.
    sgd("qadam", 0.002),
    sgd("qadam-8bit", 0.002),
    sgd("decentralized", 0.15),
    sgd("low-precision-decentralized", 0.15),
    sgd("async-model-average", 0.15),
    sgd("local-sgd", 0.15),
    sgd("post-local-sgd", 0.15),
    sgd("slowmo", 0.1),
    sgd("diloco", 0.05),
    sgd("streaming-diloco", 0.15),
    // With the Muon that it names.
    Defaults { algorithm: "muloco", learning_rate: 0.005 },
    sgd("sparse-loco", 0.15),
    sgd("d-psgd", 0.15),
    sgd("gradient-tracking", 0.15),
    sgd("gossip-pga", 0.15),
    sgd("noloco", 0.15),
    sgd("exact-diffusion", 0.15),
    sgd("extra", 0.15),
    sgd("relaysgd", 0.15),
    // Momentum 0.9 of its own: a tenth.
    sgd("qg-dsgdm", 0.015),
    sgd("sgp", 0.15),
    sgd("ad-psgd", 0.15),
    sgd("choco-sgd", 0.15),
    sgd("deepsqueeze", 0.15),
    sgd("compressed-allreduce", 0.15),
    sgd("loco", 0.15),
    // A few ranks are as good as the gradient itself.
    sgd("powersgd", 0.15),
    // Orthonormal directions, and signs.
    sgd("dion", 0.005),
    sgd("topk-ef", 0.15),
    // Momentum 0.9 of its own: a tenth.
    sgd("dgc", 0.015),
    sgd("ef21", 0.15),
    // Every element moves by γ.
    sgd("signsgd-vote", 0.0005),
    // Directions of Adam's size.
    sgd("zero-one-adam", 0.001),
    // With a momentum (EAMSGD) a tenth is better: `--lr 0.015`.
    sgd("easgd", 0.15),
    sgd("ssp", 0.15),
    sgd("compressed-async-model-average", 0.15),
    sgd("compressed-ssp", 0.15),
    sgd("compressed-ad-psgd", 0.15),
    // Every element moves by γ.
    sgd("demo", 0.001),
];

/// Returns the defaults of an algorithm; of one that is not in the table, those of synchronous SGD.
pub fn of(algorithm: &str) -> Defaults {
    ALL.iter().find(|defaults| defaults.algorithm == algorithm).copied().unwrap_or(ALL[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram::algorithms::registry;

    #[test]
    fn the_table_and_the_registry_have_the_same_names() {
        let mut table: Vec<&str> = ALL.iter().map(|defaults| defaults.algorithm).collect();
        let mut registry: Vec<&str> = registry::all().iter().map(|algorithm| algorithm.name()).collect();
        table.sort_unstable();
        registry.sort_unstable();
        assert_eq!(table, registry);
    }
}
