//! Orderings by bytes: those sent until an accuracy is reached, or in total.

use super::{Claim, LEARNED, OrderingVerdict, ResultMeasure, beats};

/// Claim about the bytes up to [`LEARNED`].
const fn sends_less(better: &'static str, worse: &'static str, factor: f64) -> Claim {
    Claim { factor, ..beats(better, worse, ResultMeasure::BytesTo(LEARNED)) }
}

pub(super) const ORDERINGS: &[Claim] = &[
    Claim {
        source: "Koloskova, Stich and Jaggi, 1902.00340",
        text: "CHOCO-SGD reaches an accuracy with a fraction of the bytes of gossip in full precision",
        ..sends_less("choco-sgd", "d-psgd", 0.5)
    },
    Claim {
        source: "Lin, Han, Mao, Wang and Dally, 1712.01887",
        text: "Deep gradient compression reaches an accuracy with a fraction of the bytes of all-reduce",
        ranks: 4,
        verdict: OrderingVerdict::Undecided,
        explanation: "Seven of ten seeds reach the target with 6 to 18 % of the bytes (12 to 36 % of the bytes of a ring), \
                      and three never do. γ was found with 8 ranks, and is too large for the noisier mean of 4, because the \
                      momentum of late elements prolongs the noise. With γ = 0.1 the first five seeds reach the target with \
                      6 to 11 %. With 8 ranks all five need 12 to 17 % (half of the bytes of a ring, or more). With 25 \
                      ranks, dgc sends more than all-reduce, because its messages go to all ranks.",
        ..sends_less("dgc", "gradient-allreduce", 0.5)
    },
    Claim {
        source: "Lu, Li, Zhang, De Sa and He, 2202.06009",
        text: "0/1 Adam sends fewer bytes than 1-bit Adam",
        ..beats("zero-one-adam", "qadam", ResultMeasure::Bytes)
    },
    Claim {
        source: "Douillard et al., 2311.08105",
        text: "DiLoCo reaches an accuracy with a fraction of the bytes of synchronous SGD",
        ..sends_less("diloco", "gradient-allreduce", 0.25)
    },
];
