//! Orderings by time over a slow network.
//!
//! A pass of the digits' net takes almost no time, and its 7 KiB take almost none to send. So links are proportionally slow: at
//! 1 Mbit/s these 7 KiB take some 58 times as long as a pass, as VGG16's 553 MB do at 1 Gbit/s. Orderings against all-reduce
//! have 25 ranks, where it sends 2(n−1)/n of the parameters. With 8 ranks it would send the whole small buffer to every rank,
//! which is fastest, but takes four times the bytes.

use super::{Claim, LEARNED, ResultMeasure, beats};
use crate::link::NetworkLink;

/// Link between distant hosts: much latency, and bandwidth to spare.
const DISTANT: NetworkLink = NetworkLink { latency: 5e-3, bandwidth: 1.25e9, compute: 1e-3, slowest: 1.0 };
/// Link of little bandwidth, between near hosts.
const NARROW: NetworkLink = NetworkLink { latency: 50e-6, bandwidth: 125e3, compute: 1e-3, slowest: 1.0 };
/// Link of little bandwidth between distant hosts.
const POOR: NetworkLink = NetworkLink { latency: 5e-3, bandwidth: 125e3, compute: 1e-3, slowest: 1.0 };
/// Fast link between ranks; any one rank may take four times as long for a pass. A pass takes as long as in the virtual time of
/// the asynchronous algorithms.
const UNEVEN: NetworkLink = NetworkLink { latency: 50e-6, bandwidth: 1.25e9, compute: 10e-3, slowest: 4.0 };

/// Claim about the seconds up to [`LEARNED`].
const fn sooner(better: &'static str, worse: &'static str, link: NetworkLink) -> Claim {
    beats(better, worse, ResultMeasure::SecondsTo(LEARNED, link))
}

pub(super) const ORDERINGS: &[Claim] = &[
    Claim {
        source: "Lian et al., 1705.09056",
        text: "Over a network of high latency, gossip on a ring reaches an accuracy sooner than all-reduce",
        ranks: 25,
        ..sooner("d-psgd", "gradient-allreduce", DISTANT)
    },
    Claim {
        source: "Assran, Loizou, Ballas and Rabbat, 1811.10792",
        passage: "abstract of the first version",
        text: "Over 10 Gbit/s with high latency, stochastic gradient push reaches an accuracy sooner than all-reduce",
        ranks: 25,
        changed: "it was added after other results were known, to make 40 orderings.",
        ..sooner("sgp", "gradient-allreduce", DISTANT)
    },
    Claim {
        source: "Tang, Gan, Zhang, Zhang and Liu, 1803.06585",
        text: "Where latency is high and bandwidth low, gossip in eight bits is faster than gossip in full precision",
        ..sooner("low-precision-decentralized", "d-psgd", POOR)
    },
    Claim {
        source: "Tang, Gan, Zhang, Zhang and Liu, 1803.06585",
        text: "Where latency is high and bandwidth low, gossip in eight bits is faster than an all-reduce in eight bits",
        ..sooner("low-precision-decentralized", "bytegrad", POOR)
    },
    Claim {
        source: "Lian, Zhang, Zhang and Liu, 1710.06952",
        text: "Where ranks are of different speed, asynchronous pair averaging reaches an accuracy sooner than D-PSGD",
        ranks: 25,
        changed: "it compared with all-reduce over a slow network; the paper is about ranks of different speed.",
        ..sooner("ad-psgd", "d-psgd", UNEVEN)
    },
    Claim {
        source: "Ho et al., NeurIPS 2013",
        text: "Where one rank or another is slow at times, bounded staleness reaches an accuracy sooner than full synchrony",
        ranks: 25,
        changed: "it had 8 ranks of equal speed over a slow network; the paper is about slow ranks, and with 8 ranks \
                  all-reduce sends four times the bytes of a ring.",
        ..sooner("ssp", "gradient-allreduce", UNEVEN)
    },
    Claim {
        source: "Gan et al., 2107.01499",
        passage: "exploration of network conditions",
        text: "At low bandwidth, gradients in eight bits reach an accuracy sooner than in full precision",
        ranks: 25,
        changed: "it had 8 ranks, for which all-reduce sends four times the bytes of a ring.",
        ..sooner("bytegrad", "gradient-allreduce", NARROW)
    },
    Claim {
        source: "Kolehmainen, Blagoev, Donaghy, Ersoy and Nies, 2506.10911",
        text: "Over a network of high latency, rounds of pairs reach an accuracy sooner than the all-reduces of DiLoCo",
        ranks: 25,
        ..sooner("noloco", "diloco", DISTANT)
    },
];
