//! Summary of a trace: shares of compute only, overlapped, and communication only, and the slowest rank.
//!
//! ```text
//! A = times in which the training thread or its device computes
//! B = times in which a hook or a background operation is in progress
//! compute only = |A \ B|    overlapped = |A ∩ B|    communication only = |B \ A|    neither = the rest of the step
//! ```
//!
//! For kinds with device times of a rank, those count, and the host times are ignored: the host only enqueued the work.
//!
//! A step lasts from the end of the one before to its own end, so that its parts, and all steps, add up. Every length
//! is in nanoseconds.

use super::intervals::Union;
use super::{Kind, Place, RankTrace, Span, Trace};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Time that a rank spent on computation and communication, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shares {
    /// Time in which the training thread computed, without communication.
    pub compute_only: u64,
    /// Time in which the training thread computed, while hooks or background operations were in progress.
    pub overlapped: u64,
    /// Time in which these were in progress, while the training thread did not compute: exposed communication.
    pub communication_only: u64,
    /// Time without computation in the training thread and without communication: loading, logging, evaluation.
    pub neither: u64,
}

impl Shares {
    fn of(window: (i64, i64), compute: &Union, communication: &Union) -> Self {
        let compute = compute.within(window);
        let communication = communication.within(window);
        let overlapped = compute.common(&communication);
        let compute_only = compute.length() - overlapped;
        let communication_only = communication.length() - overlapped;
        let whole = (window.1 - window.0).unsigned_abs();
        let neither = whole - compute_only - overlapped - communication_only;
        Shares { compute_only, overlapped, communication_only, neither }
    }

    /// Returns the sum of all shares.
    pub fn whole(&self) -> u64 {
        self.compute_only + self.overlapped + self.communication_only + self.neither
    }

    fn add(&mut self, other: &Self) {
        self.compute_only += other.compute_only;
        self.overlapped += other.overlapped;
        self.communication_only += other.communication_only;
        self.neither += other.neither;
    }
}

/// Report of one step of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepReport {
    /// Number of the step.
    pub step: u64,
    /// Time of the start, on the clock of the trace.
    pub start: i64,
    /// Time of the end.
    pub end: i64,
    /// Division of its time.
    pub shares: Shares,
}

/// Report of the steps of one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankReport {
    /// Name of the host of the rank.
    pub host: Arc<str>,
    /// Steps with a backward pass.
    pub steps: Vec<StepReport>,
    /// Division of the time of all its steps.
    pub shares: Shares,
    /// Time of this rank for its own work in a step, by kind: the mean of loading, forward pass, backward pass and
    /// optimizer; the median of the time between steps, so that an occasional evaluation does not count.
    pub alone: Vec<(Kind, f64)>,
}

impl RankReport {
    /// Returns the time of this rank for its own work in a step.
    pub fn alone_in_all(&self) -> f64 {
        self.alone.iter().map(|(_, time)| time).sum()
    }

    fn alone_in(&self, kind: Kind) -> f64 {
        self.alone.iter().filter(|(other, _)| *other == kind).map(|(_, time)| time).sum()
    }
}

/// Rank for which the others wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowest {
    /// Number of the rank.
    pub rank: usize,
    /// Time for its own work in a step.
    pub alone: f64,
    /// Time of the other ranks for the same, on average.
    pub others: f64,
    /// Kind of work with the largest part of the difference.
    pub kind: Kind,
    /// Time for that kind in a step.
    pub alone_in_kind: f64,
    /// Time of the other ranks for that, on average.
    pub others_in_kind: f64,
}

/// Report of the time of all ranks. Its `Display` is a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Reports by rank.
    pub ranks: Vec<RankReport>,
    /// Division of the time of all ranks together.
    pub shares: Shares,
    /// Slowest of two or more ranks: the one with the longest own work.
    pub slowest: Option<Slowest>,
}

impl Trace {
    /// Summarizes the trace.
    pub fn report(&self) -> Report {
        let ranks: Vec<RankReport> = self.ranks.iter().map(rank_report).collect();
        let mut shares = Shares::default();
        ranks.iter().for_each(|rank| shares.add(&rank.shares));
        let slowest = slowest(&ranks);
        Report { ranks, shares, slowest }
    }
}

/// Returns the spans that count: for each kind those of the device, if there are any, otherwise those of the host.
fn counting(rank: &RankTrace) -> Vec<&Span> {
    let is_of_device = |span: &&Span| span.place == Place::Device;
    let told: HashSet<Kind> = rank.spans.iter().filter(is_of_device).map(|span| span.kind).collect();
    rank.spans.iter().filter(|span| is_of_device(span) == told.contains(&span.kind)).collect()
}

fn rank_report(rank: &RankTrace) -> RankReport {
    let counting = counting(rank);
    let union = |is: fn(Kind) -> bool| {
        let spans = counting.iter().filter(|span| is(span.kind));
        Union::of(spans.map(|span| (span.start, span.end)))
    };
    let compute = union(Kind::is_compute);
    let communication = union(Kind::is_communication);
    // Spans after the last step, or of an incomplete step, do not form a step.
    let mut windows: BTreeMap<u64, (i64, i64, bool)> = BTreeMap::new();
    for span in counting.iter().filter(|span| !span.kind.is_communication()) {
        let (start, end, whole) = windows.entry(span.step).or_insert((span.start, span.end, false));
        *start = span.start.min(*start);
        *end = span.end.max(*end);
        *whole |= span.kind == Kind::Backward;
    }
    let mut all = Shares::default();
    let mut steps = Vec::new();
    for (step, (start, end, _)) in windows.into_iter().filter(|(_, (.., whole))| *whole) {
        let shares = Shares::of((start, end), &compute, &communication);
        all.add(&shares);
        steps.push(StepReport { step, start, end, shares });
    }
    RankReport { host: Arc::clone(&rank.host), alone: alone(&counting, &steps), steps, shares: all }
}

/// Returns the time of the rank for its own work in a step, by kind.
fn alone(spans: &[&Span], steps: &[StepReport]) -> Vec<(Kind, f64)> {
    use Kind::{Backward, Between, Forward, Loading, LoadingAndForward, Optimizer};
    let kinds = [Between, Loading, LoadingAndForward, Forward, Backward, Optimizer];
    let in_steps = |kind: Kind| {
        let mut parts: BTreeMap<u64, Vec<_>> = steps.iter().map(|step| (step.step, Vec::new())).collect();
        for span in spans.iter().filter(|span| span.kind == kind) {
            if let Some(parts) = parts.get_mut(&span.step) {
                parts.push((span.start, span.end));
            }
        }
        // A device may work on several buckets at the same time.
        let length = |parts| Union::of(parts).length() as f64;
        let mut times: Vec<f64> = parts.into_values().map(length).collect();
        times.sort_unstable_by(f64::total_cmp);
        let time = match kind {
            Between | LoadingAndForward => times.get(times.len() / 2).copied().unwrap_or(0.0),
            _ => times.iter().sum::<f64>() / times.len().max(1) as f64,
        };
        (kind, time)
    };
    kinds.into_iter().map(in_steps).collect()
}

fn slowest(ranks: &[RankReport]) -> Option<Slowest> {
    if ranks.len() < 2 {
        return None;
    }
    let times: Vec<f64> = ranks.iter().map(RankReport::alone_in_all).collect();
    let rank = (0..ranks.len()).max_by(|one, other| times[*one].total_cmp(&times[*other]))?;
    let others = |time: &dyn Fn(&RankReport) -> f64| {
        let others = ranks.iter().enumerate().filter(|(other, _)| *other != rank);
        others.map(|(_, other)| time(other)).sum::<f64>() / (ranks.len() - 1) as f64
    };
    let more = |kind: Kind| ranks[rank].alone_in(kind) - others(&|other| other.alone_in(kind));
    let kinds = ranks[rank].alone.iter().map(|(kind, _)| *kind);
    let kind = kinds.max_by(|one, other| more(*one).total_cmp(&more(*other)))?;
    Some(Slowest {
        rank,
        alone: times[rank],
        others: others(&RankReport::alone_in_all),
        kind,
        alone_in_kind: ranks[rank].alone_in(kind),
        others_in_kind: others(&|other| other.alone_in(kind)),
    })
}

const MS: f64 = 1e6;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.ranks.iter().map(|rank| rank.host.chars().count()).max().unwrap_or(0).max(4);
        writeln!(
            f,
            "rank  {:host$}  steps  ms a step  compute only  overlapped  communication only  neither",
            "host"
        )?;
        let mut line = |rank: &str, name: &str, steps: usize, shares: &Shares| {
            let share = |part: u64| 100.0 * part as f64 / shares.whole().max(1) as f64;
            writeln!(
                f,
                "{rank:>4}  {name:host$}  {steps:>5}  {:>9.2}  {:>10.1} %  {:>8.1} %  {:>16.1} %  {:>5.1} %",
                shares.whole() as f64 / steps.max(1) as f64 / MS,
                share(shares.compute_only),
                share(shares.overlapped),
                share(shares.communication_only),
                share(shares.neither)
            )
        };
        for (rank, report) in self.ranks.iter().enumerate() {
            line(&rank.to_string(), &report.host, report.steps.len(), &report.shares)?;
        }
        line("all", "", self.ranks.iter().map(|rank| rank.steps.len()).sum(), &self.shares)?;
        match &self.slowest {
            None => Ok(()),
            Some(slowest) => write!(f, "{}", slowest.describe(&self.ranks[slowest.rank].host)),
        }
    }
}

impl Slowest {
    fn describe(&self, host: &str) -> String {
        format!(
            "slowest is rank {} on {host}: {:.2} ms a step without waiting, the others {:.2} ms; most in {} ({:.2} ms, \
             the others {:.2} ms)",
            self.rank,
            self.alone / MS,
            self.others / MS,
            self.kind.name(),
            self.alone_in_kind / MS,
            self.others_in_kind / MS
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{rank, trace};
    use super::*;

    #[test]
    fn shares_are_exact_and_add_up() {
        use Kind::{AfterStep, Background, Backward, Between, Forward, GradientsReady, Optimizer, Waiting};
        let spans = [
            (Between, 0, 0, 10),
            (Forward, 0, 10, 40),
            (Backward, 0, 40, 100),
            (Waiting, 0, 100, 130),
            (Optimizer, 0, 130, 150),
            (Between, 1, 150, 155),
            (Backward, 1, 155, 200),
            // Not a step.
            (Between, 2, 200, 500),
            (GradientsReady, 0, 60, 90),
            (Background, 0, 80, 125),
            // A hook that extends into the next step.
            (AfterStep, 0, 140, 160),
        ];
        let report = trace(vec![rank("a", &spans)]).report();
        let steps = &report.ranks[0].steps;
        let first = Shares { compute_only: 60, overlapped: 50, communication_only: 25, neither: 15 };
        let second = Shares { compute_only: 40, overlapped: 5, communication_only: 5, neither: 0 };
        assert_eq!((steps[0].shares, steps[1].shares), (first, second));
        assert_eq!((steps.len(), steps[1].start, steps[1].end), (2, 150, 200));
        let both = Shares { compute_only: 100, overlapped: 55, communication_only: 30, neither: 15 };
        assert_eq!((report.shares, report.shares.whole()), (both, 200));
        assert_eq!(report.slowest, None, "of one rank");
    }

    #[test]
    fn a_devices_times_count_and_not_those_at_which_its_work_was_enqueued() {
        use Kind::{Backward, Between, Forward, GradientsReady, Optimizer, Waiting};
        let enqueued = [
            (Between, 0, 0, 1),
            (Forward, 0, 1, 2),
            (Backward, 0, 2, 4),
            (Waiting, 0, 4, 100),
            (Optimizer, 0, 100, 101),
            (GradientsReady, 0, 3, 4),
        ];
        let done = [
            (Between, 0, 0, 5),
            (Forward, 0, 5, 30),
            (Backward, 0, 30, 80),
            (Waiting, 0, 80, 100),
            (GradientsReady, 0, 50, 70),
            (GradientsReady, 0, 75, 90),
            (Optimizer, 0, 90, 98),
            // Of another bucket, at the same time.
            (Optimizer, 0, 92, 100),
        ];
        let mut both = rank("a", &enqueued);
        let device = rank("a", &done).spans.into_iter();
        both.spans.extend(device.map(|span| Span { place: Place::Device, ..span }));
        let report = trace(vec![both, rank("b", &enqueued)]).report();
        let told = report.ranks[0].steps[0];
        let shares = Shares { compute_only: 60, overlapped: 25, communication_only: 10, neither: 5 };
        assert_eq!((told.start, told.end, told.shares), (0, 100, shares));
        let alone = [Forward, Backward, Optimizer].map(|kind| report.ranks[0].alone_in(kind));
        assert_eq!(alone, [25.0, 50.0, 10.0]);
        // For a rank without a device, the host clock counts.
        let shares = Shares { compute_only: 3, overlapped: 1, communication_only: 0, neither: 97 };
        assert_eq!(report.ranks[1].shares, shares);
        assert_eq!(report.slowest.unwrap().rank, 0);
    }

    #[test]
    fn the_slowest_rank_is_named_with_what_it_is_slowest_in() {
        use Kind::{Backward, Between, Forward, Optimizer, Waiting};
        let steps = |backward: i64| -> Vec<_> {
            let step = |step: u64| {
                let start = step as i64 * 1_000_000_000;
                let at = move |from: i64, to: i64| (start + from * 1_000_000, start + to * 1_000_000);
                let span = move |kind, (from, to)| (kind, step, from, to);
                [
                    span(Between, at(0, if step == 1 { 500 } else { 2 })),
                    span(Forward, at(500, 503)),
                    span(Backward, at(503, 503 + backward)),
                    // A fast rank waits: this is not its own work.
                    span(Waiting, at(503 + backward, 600)),
                    span(Optimizer, at(600, 601)),
                ]
            };
            (0..4).flat_map(step).collect()
        };
        let report = trace(vec![rank("a", &steps(6)), rank("b", &steps(48)), rank("a", &steps(8))]).report();
        let slowest = report.slowest.unwrap();
        assert_eq!((slowest.rank, slowest.kind), (1, Kind::Backward));
        assert_eq!((slowest.alone / MS, slowest.others / MS), (54.0, 13.0), "an evaluation does not count");
        assert_eq!((slowest.alone_in_kind / MS, slowest.others_in_kind / MS), (48.0, 7.0));
        let text = report.to_string();
        let line = "slowest is rank 1 on b: 54.00 ms a step without waiting, the others 13.00 ms; most in backward \
                    (48.00 ms, the others 7.00 ms)";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn the_table_has_a_line_for_each_rank_and_one_for_all() {
        use Kind::{Backward, GradientsReady, Waiting};
        let spans = [
            (Backward, 0, 0, 3_000_000),
            (Waiting, 0, 3_000_000, 4_000_000),
            (GradientsReady, 0, 1_000_000, 4_000_000),
        ];
        let report = trace(vec![rank("host-1", &spans), rank("x", &[])]).report();
        let expected = "\
rank  host    steps  ms a step  compute only  overlapped  communication only  neither
   0  host-1      1       4.00        25.0 %      50.0 %              25.0 %    0.0 %
   1  x           0       0.00         0.0 %       0.0 %               0.0 %    0.0 %
 all              1       4.00        25.0 %      50.0 %              25.0 %    0.0 %
";
        assert!(report.to_string().starts_with(expected), "{report}");
    }
}
