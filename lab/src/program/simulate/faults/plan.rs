//! Plans of faults, drawn from a seed, and the errors that the faults excuse.

use super::scene::{FaultStage, Play};
use crate::program::console;
use crate::program::simulate::job::ClusterPoint;
use crate::random::Random;
use hexagram::physical::health::HeartbeatOptions;
use hexagram::physical::sim::{Cut, Fault, FaultKind};
use std::time::Duration;

/// Ranks and hosts of the clusters that are drawn.
const CLUSTERS: [(usize, usize); 3] = [(4, 2), (6, 3), (4, 4)];
/// Longest time of a start-up, in seconds.
const START: f64 = 0.005;
/// Time in which faults happen, in seconds: about that of a training.
const END: f64 = 10.5;

/// One training and its faults.
#[derive(Debug, Clone)]
pub(super) struct FaultPlan {
    pub(super) seed: u64,
    /// Number of the algorithm among those of the stage.
    pub(super) algorithm: usize,
    pub(super) ranks: usize,
    pub(super) hosts: usize,
    /// True if ranks of a host communicate with each other first.
    pub(super) is_hierarchical: bool,
    /// In the order of their times.
    pub(super) faults: Vec<Fault>,
}

impl FaultPlan {
    /// Creates the plan of a seed. The algorithms of the stage determine only the algorithm of the plan, and nothing else in
    /// it.
    pub(super) fn drawn(seed: u64, stage: &FaultStage) -> Self {
        let mut random = Random::new(seed);
        let algorithm = random.below(stage.algorithms.len());
        let (ranks, hosts) = CLUSTERS[random.below(CLUSTERS.len())];
        let is_hierarchical = ranks > hosts && random.below(2) == 0;
        let count = [1, 1, 1, 1, 2, 3][random.below(6)];
        let mut faults: Vec<Fault> = (0..count).flat_map(|_| fault(&mut random, ranks, hosts)).collect();
        faults.sort_by_key(|fault| fault.at);
        FaultPlan { seed, algorithm, ranks, hosts, is_hierarchical, faults }
    }

    /// Creates the plan of faults that were written, in the order of their times, with the first algorithm of the stage.
    pub(super) fn of(faults: Vec<Fault>, point: &ClusterPoint, is_hierarchical: bool, seed: u64) -> Self {
        FaultPlan { seed, algorithm: 0, ranks: point.ranks, hosts: point.hosts, is_hierarchical, faults }
    }

    /// Returns the plan without its faults.
    pub(super) fn undisturbed(&self) -> FaultPlan {
        FaultPlan { faults: Vec::new(), ..self.clone() }
    }

    /// Returns text that describes the plan.
    pub(super) fn describe(&self, stage: &FaultStage) -> String {
        let FaultPlan { seed, ranks, hosts, .. } = self;
        let algorithm = &stage.algorithms[self.algorithm].spelling;
        let how = if self.is_hierarchical { ", hosts first" } else { "" };
        let faults: String = self.faults.iter().map(|fault| format!("  {fault}\n")).collect();
        format!("seed {seed}: {algorithm}, {ranks} ranks on {hosts} hosts{how}\n{faults}")
    }

    /// Returns the command that plays the plan of a seed again. It names the algorithm, since another program may
    /// have different algorithms.
    pub(super) fn again(&self, stage: &FaultStage) -> String {
        let algorithm = &stage.algorithms[self.algorithm].spelling;
        format!("{} --faults 1 --seed {} --algorithm '{algorithm}'", console::name("simulate"), self.seed)
    }

    /// Returns the faults that did not happen, because all ranks had ended before.
    pub(super) fn unplayed(&self, play: &Play) -> impl Iterator<Item = &Fault> {
        let ends: Option<Vec<Duration>> =
            play.ends.iter().map(|end| end.as_ref().map(|end| end.at)).collect();
        let last = ends.and_then(|ends| ends.into_iter().max());
        self.faults.iter().filter(move |fault| last.is_some_and(|last| fault.at > last))
    }

    fn host(&self, rank: usize) -> usize {
        rank * self.hosts / self.ranks
    }

    /// Returns the time at which a fault stops or kills a rank for the rest of the run; `None` if none does.
    pub(super) fn end_of(&self, rank: usize) -> Option<Duration> {
        let ends = |fault: &&Fault| match fault.kind {
            FaultKind::RankDies(dead) => dead == rank,
            FaultKind::HostDies(host) => host == self.host(rank),
            FaultKind::RankStops(stopped) => stopped == rank && self.pause(fault).is_none(),
            _ => false,
        };
        self.faults.iter().find(ends).map(|fault| fault.at)
    }

    /// Returns for how long a fault lasts; `None` for a permanent one.
    fn pause(&self, fault: &Fault) -> Option<Duration> {
        let mends = |later: &&Fault| match (&fault.kind, &later.kind) {
            (FaultKind::RankStops(stopped), FaultKind::RankResumes(resumed)) => stopped == resumed,
            (FaultKind::Cut(_), FaultKind::Heal) => true,
            _ => false,
        };
        let later = self.faults.iter().filter(|later| later.at >= fault.at);
        later.filter(mends).map(|later| later.at - fault.at).next()
    }

    /// Returns true if rank `told` may report the failure of `culprit` at a time.
    pub(super) fn excuses(&self, told: usize, culprit: usize, at: Duration) -> bool {
        self.faults.iter().any(|fault| fault.at <= at && self.is_excused_by(fault, told, culprit))
    }

    /// Returns true if any rank may have an error at a time.
    pub(super) fn excuses_any(&self, told: usize, at: Duration) -> bool {
        (0..self.ranks).any(|culprit| self.excuses(told, culprit, at))
    }

    fn is_excused_by(&self, fault: &Fault, told: usize, culprit: usize) -> bool {
        match &fault.kind {
            FaultKind::RankDies(rank) => *rank == culprit,
            FaultKind::HostDies(host) => *host == self.host(culprit),
            FaultKind::RankStops(rank) => *rank == culprit && self.is_noticed(fault),
            FaultKind::Cut(cut) => {
                let across = HostPair { cut, is_healed: self.pause(fault).is_some() };
                self.is_noticed(fault) && self.is_across(across, told, culprit)
            }
            FaultKind::RankResumes(_) | FaultKind::Heal | FaultKind::Slow { .. } => false,
        }
    }

    /// Returns true if a stop or a cut may last longer than a rank may be silent; of several, each adds to the others.
    fn is_noticed(&self, fault: &Fault) -> bool {
        let silent = |fault: &&Fault| matches!(fault.kind, FaultKind::RankStops(_) | FaultKind::Cut(_));
        let is_alone = self.faults.iter().filter(silent).count() == 1;
        !is_alone || self.pause(fault).is_none_or(|pause| pause >= HeartbeatOptions::default().silence)
    }

    /// Returns true if a cut can make `culprit` appear to have failed. Each side of a two-way cut considers the other
    /// side dead. After a one-way or a healed cut, a side may receive the verdict that it has failed itself.
    fn is_across(&self, HostPair { cut, is_healed }: HostPair<'_>, told: usize, culprit: usize) -> bool {
        let told = self.host(told);
        let culprit = self.host(culprit);
        let is_partition = cut.both_ways && cut.from.len() + cut.to.len() == self.hosts;
        match is_partition && !is_healed {
            true => cut.holds(told, culprit),
            false => cut.from.contains(&culprit) || cut.to.contains(&culprit),
        }
    }
}

/// A cut, and whether it is healed.
#[derive(Clone, Copy)]
struct HostPair<'a> {
    cut: &'a Cut,
    is_healed: bool,
}

/// Draws a fault, with the event that ends it.
fn fault(random: &mut Random, ranks: usize, hosts: usize) -> Vec<Fault> {
    let early = random.below(5) == 0;
    let at = if early { random.between(0.0, START) } else { random.between(START, END) };
    let rank = random.below(ranks);
    let host = random.below(hosts);
    let pause = pause(random);
    let stop = FaultKind::RankStops(rank);
    match random.below(9) {
        0 => vec![new(at, FaultKind::RankDies(rank))],
        1 => vec![new(at, stop)],
        2 | 3 => vec![new(at, stop), new(at + pause, FaultKind::RankResumes(rank))],
        4 => vec![new(at, FaultKind::HostDies(host))],
        5 => vec![new(at, cut(random, hosts))],
        6 | 7 => vec![new(at, cut(random, hosts)), new(at + pause, FaultKind::Heal)],
        _ => {
            let share = (random.between(0.05, 0.5) * 100.0).round() / 100.0;
            vec![
                new(at, FaultKind::Slow { host, share }),
                new(at + pause, FaultKind::Slow { host, share: 1.0 }),
            ]
        }
    }
}

/// Creates a fault at a time in seconds, which is written as it is.
fn new(at: f64, kind: FaultKind) -> Fault {
    Fault { at: Duration::from_micros((at * 1e6) as u64), kind }
}

/// Draws for how many seconds a fault lasts: for less than the silence, just below it, or for more.
fn pause(random: &mut Random) -> f64 {
    let silence = HeartbeatOptions::default().silence.as_secs_f64();
    match random.below(3) {
        0 => random.between(0.05, 0.95) * silence,
        1 => silence - random.between(0.001, 0.02),
        _ => random.between(1.15, 2.2) * silence,
    }
}

/// Draws a cut: one host from all others, or two hosts from each other.
fn cut(random: &mut Random, hosts: usize) -> FaultKind {
    let host = random.below(hosts);
    let others: Vec<usize> = (0..hosts).filter(|other| *other != host).collect();
    let other = others[random.below(others.len())];
    let others = if random.below(2) == 0 { others } else { vec![other] };
    let cut = match random.below(3) {
        0 => Cut { from: vec![host], to: others, both_ways: false },
        1 => Cut { from: others, to: vec![host], both_ways: false },
        _ => Cut { from: vec![host], to: others, both_ways: true },
    };
    FaultKind::Cut(cut)
}
