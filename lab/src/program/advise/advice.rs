//! Advice: the time of each algorithm, the bandwidth up to which it pays, and the recommended ones.

use super::candidate::Candidate;
use super::ladder::{Ladder, WORTH, saved};
use crate::program::simulate::job::{ClusterPoint, SimulatedJob};
use crate::program::simulate::report::ReportRow;
use crate::suite::ErrorsAbove;
use hexagram::algorithms::Trigram;
use hexagram::physical::sim::LinkSpec;
use hexagram::{Error, Result};
use std::fmt;
use std::time::Duration;

/// One algorithm on the cluster, with its figures.
#[derive(Debug, Clone)]
pub(super) struct Advised {
    pub(super) candidate: Candidate,
    pub(super) row: ReportRow,
    /// Share of the reference's step that this algorithm saves.
    pub(super) saved: f64,
    /// Bandwidths at which it stops paying; `None` if it pays at no bandwidth.
    pub(super) pays_up_to: Option<Border>,
    /// Errors on the suite's digits; `None` for options that the suite has not run.
    pub(super) errors: Option<ErrorsAbove>,
}

/// Bandwidths between which an algorithm stops paying, in bits a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Border {
    /// Highest bandwidth that was tried at which it pays.
    pub(super) pays: f64,
    /// Next bandwidth that was tried, at which it does not; `None` if it pays at the highest.
    pub(super) next: Option<f64>,
}

/// Advice for a job on a cluster.
#[derive(Debug, Clone)]
pub(super) struct Advice {
    /// The cluster.
    pub(super) point: ClusterPoint,
    pub(super) reference: ReportRow,
    /// All others, the fastest first.
    pub(super) others: Vec<Advised>,
}

impl Advice {
    /// Simulates the algorithms on the cluster, and at further bandwidths to find those at which they pay. The first
    /// candidate is the reference for the others.
    ///
    /// # Errors
    /// The error of a rank; [`Error::Usage`] without candidates.
    pub(super) fn of(job: &SimulatedJob<'_>, here: ClusterPoint, candidates: Vec<Candidate>) -> Result<Self> {
        let mut candidates = candidates.into_iter();
        let first = candidates.next();
        let nothing = || Error::usage("no algorithm is named", "name at least two");
        let mut ladder = Ladder::new(job, here.clone(), first.ok_or_else(nothing)?);
        let reference = ladder.reference_here()?;
        let mut advised = Vec::new();
        for candidate in candidates {
            let row = ladder.here(&candidate)?;
            advised.push(Advised {
                saved: saved(&row, &reference),
                pays_up_to: ladder.border(&candidate)?,
                errors: ErrorsAbove::of(&candidate.chosen.spelling),
                candidate,
                row,
            });
        }
        advised.sort_by(|one, other| one.row.figures.step_s.total_cmp(&other.row.figures.step_s));
        Ok(Advice { point: here, reference, others: advised })
    }

    /// Returns the fastest algorithm that pays and meets a condition.
    pub(super) fn best(&self, is_asked: impl Fn(&Advised) -> bool) -> Option<&Advised> {
        self.others.iter().find(|one| one.saved >= WORTH && is_asked(one))
    }

    /// Returns the times of all algorithms, fastest first.
    pub(super) fn by_time(&self) -> Vec<&ReportRow> {
        let mut rows: Vec<&ReportRow> = self.others.iter().map(|one| &one.row).collect();
        rows.push(&self.reference);
        rows.sort_by(|one, other| one.figures.step_s.total_cmp(&other.figures.step_s));
        rows
    }

    /// Returns true if an algorithm pays whose messages are compressed.
    pub(super) fn compression_pays(&self) -> bool {
        self.best(Advised::is_compressed).is_some()
    }

    /// Returns the recommended algorithm among those that `is_asked` selects: the fastest whose errors are not above
    /// the reference's, or else the fastest.
    pub(super) fn recommended(&self, is_asked: impl Fn(&Advised) -> bool) -> Option<&Advised> {
        self.best(|one| is_asked(one) && one.is_as_good()).or_else(|| self.best(is_asked))
    }

    /// Returns the algorithm with the fewest errors on equal data, if they are fewer than the reference's.
    pub(super) fn fewest_errors(&self) -> Option<&Advised> {
        let mean = |one: &Advised| one.errors.map_or(f64::NAN, |errors| errors.like.mean);
        let fewer = self.others.iter().filter(|one| mean(one) < 0.0);
        fewer.min_by(|one, other| mean(one).total_cmp(&mean(other)))
    }

    /// Returns the standing of an algorithm among those of its precision: recommended, or the reason why not.
    pub(super) fn standing(&self, one: &Advised) -> Standing {
        let best = self.recommended(|other| other.is_compressed() == one.is_compressed());
        match best {
            _ if one.saved < WORTH => Standing::SavesTooLittle,
            Some(best) if best.name() == one.name() => Standing::Recommended,
            Some(best) if one.is_as_good() || !best.is_as_good() => Standing::Slower(best.name().to_owned()),
            _ if one.errors.is_none() => Standing::Untrained,
            _ => Standing::MoreErrors,
        }
    }
}

/// Whether an algorithm is recommended, and why it is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    Recommended,
    /// It saves less than 5 % of a step.
    SavesTooLittle,
    /// The named algorithm of the same precision is faster and makes no more errors.
    Slower(String),
    /// The suite has not trained with these options, so the errors are unknown.
    Untrained,
    /// It makes more errors than the reference.
    MoreErrors,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Recommended => f.write_str("recommended"),
            Standing::SavesTooLittle => write!(f, "saves less than {:.0} %", 100.0 * WORTH),
            Standing::Slower(best) => write!(f, "slower than `{best}`"),
            Standing::Untrained => f.write_str("not trained in the suite"),
            Standing::MoreErrors => f.write_str("more errors"),
        }
    }
}

impl Advised {
    pub(super) fn name(&self) -> &str {
        &self.candidate.chosen.spelling
    }

    pub(super) fn trigram(&self) -> Trigram {
        self.candidate.chosen.algorithm.trigram()
    }

    pub(super) fn is_compressed(&self) -> bool {
        !self.trigram().full_precision
    }

    /// Returns true if, with equal data, the suite does not find its errors above the reference's.
    pub(super) fn is_as_good(&self) -> bool {
        self.errors.is_some_and(|errors| !errors.like.is_worse())
    }
}

/// Writes the bandwidths as links are typed.
impl fmt::Display for Border {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let typed = |bits: f64| {
            let link = LinkSpec::new(bits / 8.0, Duration::ZERO).to_string();
            link.split(',').next().unwrap_or_default().to_owned()
        };
        match self.next {
            Some(next) => write!(f, "{}–{}", typed(self.pays), typed(next)),
            None => write!(f, "at least {}", typed(self.pays)),
        }
    }
}
