//! Repeats: the steps after which the periods of a simulated training repeat, so that the rest need no simulation.
//!
//! Synchronous centralized algorithms repeat in every period the work of the period before. The test compares two spans: each
//! rank must take the same time for both, up to [`TOLERANCE`], and all ranks together must send the same number of bytes. Then
//! the ranks stop after the same step, and each remaining span counts as the last one. With random draws, or a simulated
//! warm-up, all steps run. Times differ a little even without draws, since simultaneous events have some order, and roles
//! within a host rotate. So spans of several periods are compared, too.

use super::job::StepCounts;
use super::run::SentBytes;
use hexagram::algorithms::{AnyAlgorithm, Trigram};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Share by which two equal periods may differ.
const TOLERANCE: f64 = 3e-3;

/// Numbers of periods of the spans that are compared.
const SPANS: [usize; 3] = [1, 2, 4];

/// Cost of one step for one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StepCost {
    pub(super) took: Duration,
    pub(super) sent: SentBytes,
}

/// Counted steps of all ranks, which share this.
pub(super) struct Repeats {
    ranks: usize,
    counted: usize,
    /// Period of an algorithm's communication, in steps; `None` if it is unknown, or if every step must be simulated.
    period: Option<usize>,
    progress: Mutex<RepeatProgress>,
}

struct RepeatProgress {
    /// By rank.
    steps: Vec<Vec<StepCost>>,
    /// Number of ranks that have made each step.
    made: Vec<usize>,
    /// Number of steps that some rank has begun.
    begun: usize,
    /// Number of steps that are made.
    end: usize,
    /// Number of steps of a span; its last step stands for all steps left out.
    span: usize,
}

impl Repeats {
    /// Looks for repeats in the steps of `ranks` ranks with an algorithm; with `all`, every step is simulated.
    pub(super) fn new(ranks: usize, algorithm: &AnyAlgorithm, steps: StepCounts, all: bool) -> Self {
        let Trigram { centralized, synchronous, .. } = algorithm.trigram();
        let counted = steps.counted as usize;
        let period = algorithm.period().and_then(|period| usize::try_from(period).ok());
        let progress = RepeatProgress {
            steps: vec![Vec::new(); ranks],
            made: Vec::new(),
            begun: 0,
            end: counted,
            span: 1,
        };
        Repeats {
            ranks,
            counted,
            period: period.filter(|_| centralized && synchronous && !all),
            progress: Mutex::new(progress),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RepeatProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a step of a rank; returns false if the step must be omitted.
    pub(super) fn begin(&self, step: usize) -> bool {
        let mut progress = self.lock();
        let is_made = step < progress.end;
        if is_made {
            progress.begun = progress.begun.max(step + 1);
        }
        is_made
    }

    /// Ends a step of a rank.
    pub(super) fn end(&self, rank: usize, step: StepCost) {
        let progress = &mut *self.lock();
        progress.steps[rank].push(step);
        let number = progress.steps[rank].len();
        progress.made.resize(progress.made.len().max(number), 0);
        progress.made[number - 1] += 1;
        let Some(period) = self.period.filter(|_| progress.made[number - 1] == self.ranks) else { return };
        if progress.end < self.counted {
            return;
        }
        let mut spans = SPANS.iter().filter_map(|periods| period.checked_mul(*periods));
        if let Some(span) = spans.find(|span| progress.is_alike(number, *span)) {
            // Some ranks may have begun further steps, and whole spans are left out.
            let left = self.counted.saturating_sub(progress.begun.max(number)) / span * span;
            progress.end = self.counted - left;
            progress.span = span;
        }
    }

    /// Returns the number of steps that were made, of those that count.
    pub(super) fn made(&self) -> usize {
        self.lock().end
    }

    /// Returns the cost of the steps of a rank that were left out.
    pub(super) fn left_out(&self, rank: usize) -> StepCost {
        let progress = self.lock();
        let left = self.counted - progress.end;
        let steps = &progress.steps[rank];
        let last = &steps[steps.len() - progress.span.min(steps.len())..];
        let times = (left / progress.span) as u32;
        StepCost {
            took: last.iter().map(|step| step.took).sum::<Duration>() * times,
            sent: last.iter().fold(SentBytes::default(), |sum, step| sum.and(step.sent)).times(times),
        }
    }
}

impl RepeatProgress {
    /// Returns true if the span that ends with a step was like the one before, and there were three steps at least.
    fn is_alike(&self, number: usize, span: usize) -> bool {
        let Some(before) =
            span.checked_mul(2).and_then(|both| number.checked_sub(both)).filter(|_| number >= 3)
        else {
            return false;
        };
        let middle = before + span;
        let took = |steps: &[StepCost]| steps.iter().map(|step| step.took.as_secs_f64()).sum::<f64>();
        let is_alike =
            |steps: &Vec<StepCost>| are_alike(took(&steps[before..middle]), took(&steps[middle..number]));
        let sent = |range: Range<usize>| {
            let of_all = self.steps.iter().flat_map(|steps| &steps[range.clone()]);
            of_all.map(|step| step.sent.all as f64).sum::<f64>()
        };
        self.steps.iter().all(is_alike) && are_alike(sent(before..middle), sent(middle..number))
    }
}

fn are_alike(one: f64, other: f64) -> bool {
    (one - other).abs() <= TOLERANCE * one.max(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram::algorithms::Registry;

    fn repeats(algorithm: &str, counted: u32, all: bool) -> Repeats {
        let algorithm = Registry::built_in().named(algorithm).unwrap();
        Repeats::new(2, &algorithm, StepCounts { warmup: 0, counted }, all)
    }

    /// Makes steps that take this many milliseconds, one rank after the other, and returns their number and the time of the
    /// remaining steps.
    fn run(repeats: &Repeats, millis: impl Fn(usize, usize) -> u64) -> (usize, Duration) {
        for step in 0.. {
            for rank in 0..2 {
                if !repeats.begin(step) {
                    return (step, repeats.left_out(0).took);
                }
                let took = Duration::from_millis(millis(rank, step));
                repeats.end(rank, StepCost { took, sent: SentBytes::default() });
            }
        }
        unreachable!()
    }

    #[test]
    fn steps_stop_once_they_are_alike_on_every_rank() {
        let even = repeats("gradient-allreduce", 20, false);
        assert_eq!(run(&even, |_, step| if step == 0 { 9 } else { 5 }), (3, Duration::from_millis(85)));
        assert_eq!(even.made(), 3);
        let other = |rank: usize, step: usize| if rank == 1 && step < 8 { step as u64 } else { 5 };
        assert_eq!(run(&repeats("gradient-allreduce", 20, false), other), (10, Duration::from_millis(50)));
        let tolerated = |_: usize, step: usize| 5000 + 12 * (step as u64 % 2);
        assert_eq!(run(&repeats("gradient-allreduce", 20, false), tolerated).0, 3);
        let slower = |_: usize, step: usize| 5000 + 20 * step as u64;
        assert_eq!(run(&repeats("gradient-allreduce", 20, false), slower).0, 20);
    }

    #[test]
    fn steps_that_alternate_are_compared_by_twos_and_fours() {
        let millis = Duration::from_millis;
        let by_twos = |_: usize, step: usize| 5000 + 50 * (step as u64 % 2);
        assert_eq!(run(&repeats("gradient-allreduce", 20, false), by_twos), (4, millis(8 * 10_050)));
        let by_fours = |_: usize, step: usize| 5000 + [0, 100, 400, 900][step % 4];
        assert_eq!(run(&repeats("gradient-allreduce", 20, false), by_fours), (8, millis(3 * 21_400)));
    }

    #[test]
    fn whole_periods_are_compared_and_left_out() {
        let steps = |_: usize, step: usize| if step % 4 == 3 { 9 } else { 5 };
        let repeats = repeats("local-sgd(period=4)", 23, false);
        assert_eq!(run(&repeats, steps), (11, Duration::from_millis(3 * 24)));
    }

    #[test]
    fn all_steps_are_made_where_messages_go_elsewhere_in_each_or_all_are_asked_for() {
        let even = |_: usize, _: usize| 5;
        for repeats in [repeats("d-psgd", 9, false), repeats("ssp", 9, false), repeats("bytegrad", 9, true)] {
            assert_eq!(run(&repeats, even), (9, Duration::ZERO));
        }
    }
}
