//! Paces of simulated ranks: the factor of the passes of each step of each rank.

use super::point::StepCounts;
use crate::random::Random;
use clap::Args;
use hexagram::physical::hash;
use hexagram::{Error, Result};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Largest factor of a rank.
const LARGEST: f64 = 1e6;

/// Options of how long ranks compute.
#[derive(Args, Debug, Clone)]
pub struct PaceOptions {
    /// Slower ranks and their factor, as in 3:2.5, or 8-15:1.8 for a different kind of GPU; may be repeated
    #[arg(long, value_name = "RANKS:FACTOR")]
    pub straggler: Vec<String>,
    /// Random slowdown of the passes, for each rank and step: up to a share, as in 5%; or normal:5%, with the
    /// standard deviation
    #[arg(long, value_name = "SHARE")]
    pub compute_jitter: Option<Jitter>,
    /// Slow change of the speed of each rank: the share by which it becomes slower and recovers, and the period in
    /// steps, as in 10%:200; each rank begins at a random point of the period
    #[arg(long, value_name = "SHARE:STEPS")]
    pub compute_drift: Option<Drift>,
}

/// Distribution of the times of passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Jitter {
    /// Longer by a share that is uniformly distributed from 0 to this one.
    Even(f64),
    /// Normally distributed, with this share as standard deviation; never negative.
    Normal(f64),
}

/// Slow change of a rank's pace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drift {
    share: f64,
    steps: f64,
}

impl PaceOptions {
    /// Returns true if the pace of a rank differs from step to step.
    pub(crate) fn varies(&self) -> bool {
        self.compute_jitter.is_some() || self.compute_drift.is_some()
    }

    /// Returns the constant factor of each rank.
    ///
    /// # Errors
    /// Text that names no ranks or no factor, in one line.
    pub(crate) fn slowness(&self, ranks: usize) -> Result<Vec<f64>> {
        let mut slowness = vec![1.0; ranks];
        for text in &self.straggler {
            let parsed = straggler(text).filter(|(named, _)| *named.end() < ranks);
            let Some((named, factor)) = parsed else {
                let what = format!("--straggler {text} does not match {ranks} ranks with a factor");
                let remedy =
                    "write a rank or a range of them and a factor up to 1e6, as in 3:2.5 or 8-15:1.8";
                return Err(Error::usage(what, remedy));
            };
            slowness[named].fill(factor);
        }
        Ok(slowness)
    }

    /// Returns the paces of this many ranks, whose changes follow from a seed.
    ///
    /// # Errors
    /// As [`PaceOptions::slowness`].
    pub(crate) fn paces(&self, ranks: usize, seed: u64) -> Result<Paces> {
        let PaceOptions { compute_jitter: jitter, compute_drift: drift, .. } = *self;
        Ok(Paces { slowness: self.slowness(ranks)?, jitter, drift, seed })
    }
}

/// Paces of ranks, drawn for one step after the other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Paces {
    /// Constant factor of each rank.
    slowness: Vec<f64>,
    jitter: Option<Jitter>,
    drift: Option<Drift>,
    seed: u64,
}

/// Factors of one rank in its steps, from the first on, without an end.
pub(crate) struct Pace {
    slowness: f64,
    jitter: Option<Jitter>,
    drift: Option<Drift>,
    /// Part of a turn of its drift at which the rank begins.
    phase: f64,
    random: Random,
    step: u32,
}

impl Paces {
    /// Returns the pace of a single rank that stays as it is.
    pub(super) fn steady(slowness: f64) -> Self {
        Paces { slowness: vec![slowness], jitter: None, drift: None, seed: 0 }
    }

    /// Returns the pace of a rank.
    pub(crate) fn of(&self, rank: usize) -> Pace {
        let mut random = Random::new([self.seed, rank as u64].into_iter().fold(hash::START, hash::step));
        let phase = random.between(0.0, 1.0);
        let Paces { slowness, jitter, drift, .. } = self;
        Pace { slowness: slowness[rank], jitter: *jitter, drift: *drift, phase, random, step: 0 }
    }

    /// Returns the mean factor of the slowest rank over the counted steps.
    pub(crate) fn slowest(&self, steps: StepCounts) -> f64 {
        if self.jitter.is_none() && self.drift.is_none() {
            return self.slowness.iter().copied().fold(0.0, f64::max);
        }
        let counted =
            |rank| -> f64 { self.of(rank).skip(steps.warmup as usize).take(steps.counted as usize).sum() };
        (0..self.slowness.len()).map(counted).fold(0.0, f64::max) / f64::from(steps.counted)
    }
}

impl Iterator for Pace {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        let step = f64::from(self.step);
        self.step = self.step.saturating_add(1);
        let jitter = self.jitter.map_or(1.0, |jitter| jitter.draw(&mut self.random));
        Some(self.slowness * jitter * self.drift.map_or(1.0, |drift| drift.at(step, self.phase)))
    }
}

/// Decodes ranks and their factor.
fn straggler(text: &str) -> Option<(RangeInclusive<usize>, f64)> {
    let (named, factor) = text.split_once(':')?;
    let (first, last) = named.split_once('-').unwrap_or((named, named));
    let named = first.parse().ok()?..=last.parse().ok()?;
    let factor = factor.parse().ok().filter(|factor: &f64| *factor > 0.0 && *factor <= LARGEST)?;
    (!named.is_empty()).then_some((named, factor))
}

impl Jitter {
    /// Draws the factor of a step.
    fn draw(self, random: &mut Random) -> f64 {
        match self {
            Jitter::Even(share) => 1.0 + share * random.between(0.0, 1.0),
            Jitter::Normal(share) => (1.0 + share * random.normal()).max(0.0),
        }
    }
}

impl Drift {
    /// Returns the factor of a step, for a rank that begins at this phase of its change.
    fn at(self, step: f64, phase: f64) -> f64 {
        let turn = (step / self.steps + phase).fract();
        1.0 + self.share * (1.0 - (2.0 * turn - 1.0).abs())
    }
}

/// Returns a share from nothing to tenfold, such as `5%` or `0.05`.
fn share(text: &str) -> Option<f64> {
    let number = text
        .strip_suffix('%')
        .map_or_else(|| text.parse(), |percent| percent.parse().map(|p: f64| p / 100.0));
    number.ok().filter(|share| (0.0..=10.0).contains(share))
}

impl FromStr for Jitter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let jitter = match text.split_once(':') {
            Some(("normal", text)) => share(text).map(Jitter::Normal),
            Some(_) => None,
            None => share(text).map(Jitter::Even),
        };
        jitter.ok_or_else(|| {
            Error::usage(format!("`{text}` is not a share"), "write one as in 5%, or normal:5%")
        })
    }
}

impl FromStr for Drift {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let decoded = text.split_once(':').and_then(|(of, steps)| {
            let steps = steps.parse().ok().filter(|steps: &u32| *steps > 0)?;
            Some(Drift { share: share(of)?, steps: f64::from(steps) })
        });
        let wrong =
            || Error::usage(format!("`{text}` is not a drift"), "write a share and steps, as in 10%:200");
        decoded.ok_or_else(wrong)
    }
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Jitter::Even(share) => write!(f, "{share}"),
            Jitter::Normal(share) => write!(f, "normal:{share}"),
        }
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.share, self.steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(straggler: &[&str], jitter: Option<&str>, drift: Option<&str>) -> PaceOptions {
        PaceOptions {
            straggler: straggler.iter().map(|text| (*text).to_owned()).collect(),
            compute_jitter: jitter.map(|text| text.parse().unwrap()),
            compute_drift: drift.map(|text| text.parse().unwrap()),
        }
    }

    fn factors(paces: &Paces, rank: usize, steps: usize) -> Vec<f64> {
        paces.of(rank).take(steps).collect()
    }

    #[test]
    fn ranks_have_the_factors_that_name_them() {
        let named = options(&["0-1:2", "1:3", "5:0.5"], None, None);
        assert_eq!(named.slowness(6).unwrap(), [2.0, 3.0, 1.0, 1.0, 1.0, 0.5]);
        assert_eq!(factors(&named.paces(6, 7).unwrap(), 1, 2), [3.0, 3.0]);
        for wrong in ["6:2", "5-6:2", "2-1:2", "1:0", "1", "x:2", "1:inf", "1:1e30"] {
            let error = options(&[wrong], None, None).slowness(6).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("3:2.5 or 8-15:1.8"), "{error}");
        }
    }

    #[test]
    fn draws_are_those_of_the_distribution_and_follow_from_the_seed() {
        const STEPS: u32 = 4000;
        let steps = f64::from(STEPS);
        let of = |jitter, seed| {
            let paces = options(&[], Some(jitter), None).paces(2, seed).unwrap();
            [0, 1].map(|rank| factors(&paces, rank, STEPS as usize))
        };
        let even = of("10%", 1);
        assert_eq!(even, of("0.1", 1));
        assert!(even[0] != even[1] && even != of("10%", 2));
        assert!(even[0].iter().all(|factor| (1.0..1.1).contains(factor)));
        let mean = |factors: &[f64]| factors.iter().sum::<f64>() / steps;
        assert!((mean(&even[0]) - 1.05).abs() < 0.002, "{}", mean(&even[0]));
        let normal = &of("normal:10%", 1)[0];
        let variance = normal.iter().map(|factor| (factor - 1.0).powi(2)).sum::<f64>() / steps;
        assert!((mean(normal) - 1.0).abs() < 0.01 && (variance.sqrt() - 0.1).abs() < 0.01, "{variance}");
    }

    #[test]
    fn a_drift_goes_slowly_to_its_share_and_back() {
        let paces = options(&["1:2"], None, Some("20%:100")).paces(3, 1).unwrap();
        let slowest = paces.slowest(StepCounts { warmup: 30, counted: 100 });
        let paces = [0, 1, 2].map(|rank| factors(&paces, rank, 200));
        // The mean of a whole turn, from wherever it begins.
        assert!((slowest - 2.2).abs() < 0.01, "{slowest}");
        assert!(paces[0][..100].iter().zip(&paces[0][100..]).all(|(one, next)| (one - next).abs() < 1e-12));
        let largest = |factors: &[f64]| factors.iter().copied().fold(0.0, f64::max);
        assert!((largest(&paces[0]) - 1.2).abs() < 0.005 && (largest(&paces[1]) - 2.4).abs() < 0.01);
        assert!(paces[0].windows(2).all(|pair| (pair[1] - pair[0]).abs() < 0.0041));
        assert_ne!(paces[0], paces[2]);
    }

    #[test]
    fn what_is_no_jitter_or_drift_is_refused() {
        for wrong in ["", "x", "-5%", "gamma:5%", "2000%", "nan"] {
            assert!(wrong.parse::<Jitter>().unwrap_err().to_string().contains("normal:5%"));
        }
        for wrong in ["10%", "10%:0", "10%:x", "x:200"] {
            assert!(wrong.parse::<Drift>().unwrap_err().to_string().contains("10%:200"));
        }
    }
}
