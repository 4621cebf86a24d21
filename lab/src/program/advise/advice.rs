//! Advice: what each algorithm takes, up to what bandwidth it pays, and what is said of that in words.

use super::candidate::{Candidate, REFERENCE};
use super::ladder::{Ladder, WORTH, pays, saved};
use crate::program::say::percent;
use crate::program::simulate::job::{Job, Point};
use crate::program::simulate::report::Row;
use crate::suite::{Difference, ErrorsAbove};
use hexagram::algorithms::Trigram;
use hexagram::physical::sim::LinkSpec;
use hexagram::{Error, Result};
use std::fmt;
use std::time::Duration;

/// One algorithm on the cluster, with its figures.
#[derive(Debug, Clone)]
pub(super) struct Advised {
    pub(super) candidate: Candidate,
    pub(super) row: Row,
    /// Share of the reference's step that it saves.
    pub(super) saved: f64,
    /// Highest bandwidth at which it pays.
    pub(super) pays_up_to: Option<Border>,
    /// Errors on the suite's digits; `None` for options that the suite has not run.
    pub(super) errors: Option<ErrorsAbove>,
}

/// Highest bandwidth of those that were tried at which an algorithm pays.
#[derive(Debug, Clone, Copy)]
pub(super) struct Border {
    /// In bits a second.
    pub(super) bandwidth: f64,
    /// True if none above it was tried, so that it may pay further.
    pub(super) is_highest: bool,
}

/// Advice for a job on a cluster.
#[derive(Debug, Clone)]
pub(super) struct Advice {
    /// The cluster.
    pub(super) point: Point,
    pub(super) reference: Row,
    /// All others, the fastest first.
    pub(super) others: Vec<Advised>,
}

impl Advice {
    /// Simulates the algorithms on the cluster, and at other bandwidths as far as it takes to see where they pay. The
    /// others are compared to the first.
    ///
    /// # Errors
    /// That of a rank; [`Error::Usage`] if there is no second.
    pub(super) fn of(job: &Job<'_>, here: Point, candidates: Vec<Candidate>) -> Result<Self> {
        let mut candidates = candidates.into_iter();
        let first = candidates.next();
        let nothing = || Error::usage("there is no algorithm to compare", "name some");
        let mut ladder = Ladder::new(job, here.clone(), first.ok_or_else(nothing)?);
        let reference = ladder.reference(0)?;
        let mut advised = Vec::new();
        for candidate in candidates {
            let row = ladder.simulated(&candidate, 0)?;
            let highest = ladder.highest(&candidate, pays(&row, &reference))?;
            advised.push(Advised {
                saved: saved(&row, &reference),
                pays_up_to: highest.map(|exponent| ladder.border(exponent)),
                errors: ErrorsAbove::of(&candidate.chosen.spelling),
                candidate,
                row,
            });
        }
        advised.sort_by(|one, other| one.row.figures.step_s.total_cmp(&other.row.figures.step_s));
        Ok(Advice { point: here, reference, others: advised })
    }

    /// Returns the fastest of those that pay and for which something holds.
    fn best(&self, is_asked: impl Fn(&Advised) -> bool) -> Option<&Advised> {
        self.others.iter().find(|one| one.saved >= WORTH && is_asked(one))
    }

    /// Returns what all algorithms take, the fastest first.
    pub(super) fn by_time(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.others.iter().map(|one| &one.row).collect();
        rows.push(&self.reference);
        rows.sort_by(|one, other| one.figures.step_s.total_cmp(&other.figures.step_s));
        rows
    }

    /// Returns true if an algorithm pays whose messages are compressed.
    pub(super) fn compression_pays(&self) -> bool {
        self.best(Advised::is_compressed).is_some()
    }

    /// Returns what to do, in whole sentences.
    pub(super) fn verdict(&self) -> Vec<String> {
        let is_full = |one: &Advised| !one.is_compressed();
        let mut said = Vec::new();
        if let Some(fastest) = self.others.iter().find(|one| one.is_compressed()) {
            said.push(match self.compression_pays() {
                true => self.pays("Compression pays here", Advised::is_compressed),
                false => self.does_not_pay(fastest),
            });
        }
        if self.others.iter().any(is_full) {
            said.push(match self.best(is_full) {
                Some(_) => {
                    self.pays("Fewer messages, or not waiting for them, pay in full precision", is_full)
                }
                None => format!("Nothing in full precision pays, so that `{REFERENCE}` is right among that."),
            });
        }
        said
    }

    fn does_not_pay(&self, best: &Advised) -> String {
        let name = &best.candidate.chosen.spelling;
        let reference = millis(&self.reference);
        let figure = match best.saved > 0.0 {
            true => format!("saves {} of the {reference} of `{REFERENCE}`", percent(best.saved)),
            false => format!("takes {} where `{REFERENCE}` takes {reference}", millis(&best.row)),
        };
        format!("Compression does not pay here: the fastest with it, `{name}`, {figure}.")
    }

    /// Says which of those for which something holds is best: the fastest whose errors are not above the reference's,
    /// and one that is faster still.
    fn pays(&self, what: &str, is_asked: impl Fn(&Advised) -> bool) -> String {
        let as_good = self.best(|one| is_asked(one) && one.is_as_good());
        let fastest = self.best(|one| is_asked(one));
        let mut said = match as_good.or(fastest) {
            Some(best) => format!("{what}: {}.", self.praise(best)),
            None => return String::new(),
        };
        match (as_good, fastest) {
            (Some(good), Some(fast)) if good.saved < fast.saved => {
                let name = &fast.candidate.chosen.spelling;
                said += &format!(
                    " Faster is `{name}`, {}, at a price: {}.",
                    millis(&fast.row),
                    fast.told_errors()
                );
            }
            _ => {}
        }
        said
    }

    fn praise(&self, best: &Advised) -> String {
        let up_to = match best.pays_up_to {
            Some(border) => format!(", up to {border}"),
            None => String::new(),
        };
        format!(
            "`{}` takes {} in place of {}, {} less{up_to}; {}",
            best.candidate.chosen.spelling,
            millis(&best.row),
            millis(&self.reference),
            percent(best.saved),
            best.told_errors()
        )
    }
}

impl Advised {
    pub(super) fn trigram(&self) -> Trigram {
        self.candidate.chosen.algorithm.trigram()
    }

    fn is_compressed(&self) -> bool {
        !self.trigram().full_precision
    }

    /// Returns true if the suite does not tell its errors from the reference's, or finds them below, with data alike.
    fn is_as_good(&self) -> bool {
        self.errors.is_some_and(|errors| !errors.like.is_worse())
    }

    fn told_errors(&self) -> String {
        let Some(ErrorsAbove { like, skewed }) = self.errors else {
            return "the suite has not trained with these options".to_owned();
        };
        let told = |difference: Difference| match difference.is_worse() {
            true => format!("more errors ({})", points(difference)),
            false => format!("about as many errors ({})", points(difference)),
        };
        format!(
            "on the suite's digits it makes {} with like data and {} with skewed data",
            told(like),
            told(skewed)
        )
    }
}

/// Returns the milliseconds of a step.
pub(super) fn millis(row: &Row) -> String {
    format!("{:.1} ms", 1e3 * row.figures.step_s)
}

/// Returns a difference of errors in percentage points.
pub(super) fn points(difference: Difference) -> String {
    let Difference { mean, half } = difference;
    if mean.is_finite() { format!("{mean:+.2} ± {half:.2} points") } else { "a run diverged".to_owned() }
}

/// Writes the bandwidth as links are typed.
impl fmt::Display for Border {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = LinkSpec::new(self.bandwidth / 8.0, Duration::ZERO).to_string();
        let at_least = if self.is_highest { "at least " } else { "" };
        write!(f, "{at_least}{}", link.split(',').next().unwrap_or_default())
    }
}
