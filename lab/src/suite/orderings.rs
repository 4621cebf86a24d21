//! Orderings that papers have published, each judged by the suite's numbers: which algorithm beats which, when, and by what.
//!
//! To add one, add a [`Claim`] to [`ORDERINGS`]. The suite's page lists all of them with the numbers of both sides.

use super::{Estimate, Measure, Place, Results};
use crate::link::Link;
use std::fmt;

/// Published ordering of two algorithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Claim {
    /// Paper, by authors and arXiv number.
    pub source: &'static str,
    /// Ordering in words.
    pub text: &'static str,
    /// Algorithm that is said to be better.
    pub better: &'static str,
    /// Algorithm that is said to be worse.
    pub worse: &'static str,
    /// Task of the suite on which it is judged.
    pub task: &'static str,
    /// Partition of the suite, as it displays itself.
    pub partition: &'static str,
    /// Number of ranks.
    pub ranks: usize,
    /// Quantity of which the better one has less.
    pub measure: Measure,
    /// Factor that the better one's quantity may have of the worse one's, below 1 for a distance between the two, above 1
    /// for "nearly as good".
    pub factor: f64,
}

/// Judgement of an ordering.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// The means are as the paper says, and so is each of the seeds.
    Holds,
    /// The means are as the paper says, but not those of every seed.
    OnAverage,
    /// The means are not as the paper says.
    Fails,
    /// The suite has not run one of the two there.
    Missing,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Holds => "holds",
            Verdict::OnAverage => "on average",
            Verdict::Fails => "does not",
            Verdict::Missing => "not run",
        })
    }
}

impl Claim {
    /// Returns the place of one of the two algorithms.
    fn place(&self, algorithm: &str) -> Place {
        Place {
            algorithm: algorithm.to_owned(),
            task: self.task.to_owned(),
            partition: self.partition.to_owned(),
            ranks: self.ranks,
        }
    }

    /// Judges the ordering by results of the suite.
    pub fn judge(&self, results: &Results) -> Verdict {
        let values = |algorithm: &str| -> Vec<f64> {
            let records = results.at(&self.place(algorithm));
            records.into_iter().map(|record| self.measure.of(record)).collect()
        };
        let better = values(self.better);
        let worse = values(self.worse);
        if better.is_empty() || better.len() != worse.len() {
            return Verdict::Missing;
        }
        let holds = |better: f64, worse: f64| better < self.factor * worse;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        if !holds(mean(&better), mean(&worse)) {
            Verdict::Fails
        } else if better.iter().zip(&worse).all(|(better, worse)| holds(*better, *worse)) {
            Verdict::Holds
        } else {
            Verdict::OnAverage
        }
    }

    /// Returns the numbers of the better and the worse one.
    pub fn numbers(&self, results: &Results) -> [Option<Estimate>; 2] {
        [self.better, self.worse].map(|name| results.estimate(&self.place(name), self.measure))
    }
}

/// Partitions, as they display themselves.
const EQUAL: &str = "equal";
const MIXED: &str = "dirichlet(0.1)";
/// Accuracy on the digits that counts as learned.
const LEARNED: f64 = 0.9;
/// Link between distant hosts: 100 Mbit/s, and messages of 1 ms.
const SLOW: Link = Link { latency: 1e-3, bandwidth: 12.5e6, compute: 1e-3 };

/// Creates a claim that `better` has less of a quantity than `worse`.
const fn beats(better: &'static str, worse: &'static str, measure: Measure) -> Claim {
    let source = "";
    let text = "";
    Claim { source, text, better, worse, task: "digits", partition: EQUAL, ranks: 8, measure, factor: 1.0 }
}

/// Orderings that are judged.
pub const ORDERINGS: &[Claim] = &[
    Claim {
        source: "Pu and Nedić, 1805.11454",
        text: "Gradient tracking has no bias of heterogeneous data, gossip of parameters has one",
        task: "quadratics",
        partition: MIXED,
        factor: 0.01,
        ..beats("gradient-tracking", "d-psgd", Measure::OwnLoss)
    },
    Claim {
        source: "Richtárik et al., 2106.05203",
        text: "On heterogeneous data without noise EF21 converges, where error feedback stops short of the optimum",
        task: "quadratics",
        partition: MIXED,
        ..beats("ef21", "topk-ef", Measure::Loss)
    },
    Claim {
        source: "Karimireddy et al., 1910.06378",
        text: "Local steps drift on heterogeneous data, and end at another point than synchronous SGD",
        task: "quadratics",
        partition: MIXED,
        factor: 0.1,
        ..beats("gradient-allreduce", "local-sgd", Measure::Loss)
    },
    Claim {
        source: "Koloskova et al., 2003.10422",
        text: "On heterogeneous data gossip on a ring needs more steps than synchronous SGD",
        partition: MIXED,
        ranks: 25,
        ..beats("gradient-allreduce", "d-psgd", Measure::Loss)
    },
    Claim {
        source: "Assran et al., 1811.10792",
        text: "Push-sum on an exponential graph keeps replicas closer to each other than gossip on a ring",
        ranks: 25,
        ..beats("sgp", "d-psgd", Measure::Consensus)
    },
    Claim {
        source: "Lian et al., 1705.09056",
        text: "Over a network with high latency, gossip is sooner at an accuracy than all-reduce",
        ranks: 25,
        ..beats("d-psgd", "gradient-allreduce", Measure::SecondsTo(LEARNED, SLOW))
    },
    Claim {
        source: "Lian et al., 1710.06952",
        text: "Over a slow network, asynchronous pair averaging is sooner at an accuracy than all-reduce",
        ranks: 25,
        ..beats("ad-psgd", "gradient-allreduce", Measure::SecondsTo(LEARNED, SLOW))
    },
    Claim {
        source: "Koloskova et al., 1902.00340",
        text: "CHOCO-SGD is at an accuracy with a fraction of the bytes of gossip at full precision",
        factor: 0.5,
        ..beats("choco-sgd", "d-psgd", Measure::BytesTo(LEARNED))
    },
    Claim {
        source: "Alistarh et al., 1610.02132",
        text: "Gradients in 8 bits are at an accuracy with a third of the bytes",
        factor: 0.34,
        ..beats("bytegrad", "gradient-allreduce", Measure::BytesTo(LEARNED))
    },
    Claim {
        source: "Vogels et al., 1905.13727",
        text: "PowerSGD is at an accuracy with less than a third of the bytes of all-reduce",
        factor: 0.33,
        ..beats("powersgd", "gradient-allreduce", Measure::BytesTo(LEARNED))
    },
    Claim {
        source: "Vogels et al., 1905.13727",
        text: "Low rank with error feedback learns better than signs without it",
        ..beats("powersgd", "signsgd-vote", Measure::Loss)
    },
    Claim {
        source: "Lin et al., 1712.01887",
        text: "Deep gradient compression is at an accuracy with less than half of the bytes of all-reduce",
        factor: 0.5,
        ..beats("dgc", "gradient-allreduce", Measure::BytesTo(LEARNED))
    },
    Claim {
        source: "Hsieh et al., 1910.00189",
        text: "On data skewed by label, deep gradient compression loses to synchronous SGD",
        partition: MIXED,
        ..beats("gradient-allreduce", "dgc", Measure::Loss)
    },
    Claim {
        source: "Lin et al., 1808.07217",
        text: "Local steps that begin late learn better than those from the start",
        partition: MIXED,
        ..beats("post-local-sgd", "local-sgd", Measure::Loss)
    },
    Claim {
        source: "Wang et al., 1910.00643",
        text: "A momentum over rounds of local steps improves on their mean",
        partition: MIXED,
        ..beats("slowmo", "local-sgd", Measure::Loss)
    },
    Claim {
        source: "Lu et al., 2202.06009",
        text: "0/1 Adam sends less than 1-bit Adam",
        ..beats("zero-one-adam", "qadam", Measure::Bytes)
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{Record, State};

    fn record(claim: &Claim, algorithm: &str, seed: u64, loss: f64) -> Record {
        let state = State {
            step: 1,
            loss,
            accuracy: None,
            consensus: 0.0,
            bytes: 0.0,
            most_bytes: 0,
            most_messages: 0,
        };
        Record {
            place: claim.place(algorithm),
            seed,
            trigram: "☰".to_owned(),
            synchronous: true,
            learning_rate: 0.1,
            own_loss: loss,
            distance: None,
            curve: vec![state],
        }
    }

    fn verdict(losses: &[(f64, f64)]) -> Verdict {
        let claim = beats("one", "other", Measure::Loss);
        let records = losses.iter().zip(0..).flat_map(|((one, other), seed)| {
            [record(&claim, "one", seed, *one), record(&claim, "other", seed, *other)]
        });
        claim.judge(&Results::new(records.collect()))
    }

    #[test]
    fn orderings_are_judged_by_means_and_by_seeds() {
        assert_eq!(verdict(&[(1.0, 2.0), (2.0, 3.0)]), Verdict::Holds);
        assert_eq!(verdict(&[(1.0, 5.0), (3.0, 2.0)]), Verdict::OnAverage);
        assert_eq!(verdict(&[(2.0, 2.0), (3.0, 2.0)]), Verdict::Fails);
        assert_eq!(verdict(&[(1.0, f64::INFINITY)]), Verdict::Holds);
        assert_eq!(verdict(&[(f64::INFINITY, f64::INFINITY)]), Verdict::Fails);
        assert_eq!(verdict(&[]), Verdict::Missing);
    }

    #[test]
    fn every_ordering_is_of_algorithms_and_tasks_that_there_are() {
        let names: Vec<&str> =
            hexagram::algorithms::registry::all().iter().map(|algorithm| algorithm.name()).collect();
        let partitions = crate::suite::PARTITIONS.map(|partition| partition.to_string());
        for claim in ORDERINGS {
            assert!(names.contains(&claim.better) && names.contains(&claim.worse), "{claim:?}");
            assert!(partitions.iter().any(|partition| partition == claim.partition), "{claim:?}");
            assert!(["quadratics", "digits", "text"].contains(&claim.task), "{claim:?}");
            assert!(!claim.source.is_empty() && !claim.text.is_empty(), "{claim:?}");
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let claim = beats("one", "other", Measure::Loss);
        for loss in [0.25, f64::INFINITY] {
            let record = record(&claim, "one", 3, loss);
            assert_eq!(Record::parse(&record.json()).unwrap(), record);
        }
        assert!(Record::parse("{}").unwrap_err().to_string().contains("no record"));
    }
}
