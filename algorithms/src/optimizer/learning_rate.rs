//! Variable learning rates: a warm-up, and a schedule after it.
//!
//! ```text
//! γ(t) = base · (start + (1 − start) t / W)              t < W: warm-up of W steps
//! γ(t) = base · f(t − W)                                 afterwards, s = t − W and S = steps − W
//!
//! constant     f = 1
//! linear       f = 1 + (end − 1) s / S                   end from S on
//! cosine       f = end + (1 − end) (1 + cos(π s / S)) / 2    end from S on
//! step         f = factor^⌊s / every⌋
//! one-cycle    f rises from `start` to 1 within rise · steps − 1 steps, and falls to `end` in step `steps` − 1: half a
//!              cosine each. It is its own warm-up.
//! ```
//!
//! Step t is the number of steps before it, including those before a checkpoint; there is no other state. Equal to
//! PyTorch's `LinearLR`, `CosineAnnealingLR` (until its minimum; ours then stays there), `StepLR` and `OneCycleLR`
//! (without its cycle of momentum), with `LinearLR` as warm-up, joined by `SequentialLR`.
//!
//! Sources: Loshchilov and Hutter, "SGDR", ICLR 2017 (cosine); Smith and Topin, "Super-convergence", 2018 (one-cycle);
//! Goyal et al., "Accurate, large minibatch SGD", 2017 (warm-up).

use crate::plugin::check_option;
use hexagram_logical::options_text::{Catalogue, NamedOptions, Number, Options, above};
use hexagram_logical::{Error, Result};
use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

/// Learning rate γ of every step: a pure function of the step number.
///
/// ```
/// use hexagram::algorithms::{LearningRate, RateSchedule};
///
/// let rate = LearningRate {
///     base: 0.1,
///     warmup: 100,
///     schedule: RateSchedule::Cosine { steps: 1000, end: 0.0 },
///     ..LearningRate::default()
/// };
/// assert!(rate.at(0) < 0.01);
/// assert_eq!(rate.at(100), 0.1);
/// assert_eq!(rate.at(1000), 0.0);
/// assert_eq!(LearningRate::from(0.5).at(7), 0.5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    /// Maximum learning rate, to which all factors apply; at least 0. Default: 0.1.
    pub base: f64,
    /// Number W of steps in which the rate rises to `base`. Default: 0.
    pub warmup: u64,
    /// Factor in the first step of the warm-up, 0 to 1. Default: 0.01.
    pub start: f64,
    /// Schedule after the warm-up. Default: constant.
    pub schedule: RateSchedule,
}

/// Factor of the learning rate after the warm-up, by step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum RateSchedule {
    /// The factor stays 1.
    #[default]
    Constant,
    /// The factor falls linearly from 1 to `end`.
    Linear {
        /// Number of steps after which the end is reached, including the warm-up.
        steps: u64,
        /// Factor at the end, at least 0.
        end: f64,
    },
    /// The factor falls from 1 to `end` along half a cosine.
    Cosine {
        /// Number of steps after which the end is reached, including the warm-up.
        steps: u64,
        /// Factor at the end, at least 0.
        end: f64,
    },
    /// The factor is multiplied by `factor` periodically.
    Step {
        /// Number of steps from one multiplication to the next, at least 1.
        every: u64,
        /// Factor of each multiplication, above 0.
        factor: f64,
    },
    /// The factor rises from `start` to 1, and falls to `end`.
    OneCycle {
        /// Number of steps of the cycle.
        steps: u64,
        /// Share of the steps in which the factor rises, above 0 and below 1. Default of PyTorch: 0.3.
        rise: f64,
        /// Factor in the first step, 0 to 1. Default of PyTorch: 1/25.
        start: f64,
        /// Factor in the last step, 0 to 1. Default of PyTorch: 1/250000.
        end: f64,
    },
}

impl Default for LearningRate {
    fn default() -> Self {
        LearningRate { base: 0.1, warmup: 0, start: 0.01, schedule: RateSchedule::Constant }
    }
}

impl From<f64> for LearningRate {
    fn from(base: f64) -> Self {
        LearningRate { base, ..LearningRate::default() }
    }
}

impl LearningRate {
    /// Returns the learning rate after `step` steps.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.base * between(self.start, 1.0, step as f64 / self.warmup as f64);
        }
        self.base * self.schedule.factor(step - self.warmup, self.warmup)
    }

    /// Returns the schedules by name, for a training of `steps` steps with this base: they are the defaults of a
    /// spelling without `base` and `steps`.
    pub fn catalogue(base: f64, steps: u64) -> Catalogue<LearningRate> {
        let with = |schedule| LearningRate { schedule, ..LearningRate::from(base) };
        let cycle = RateSchedule::OneCycle { steps, rise: 0.3, start: 1.0 / 25.0, end: 1.0 / 250_000.0 };
        let step = RateSchedule::Step { every: (steps / 3).max(1), factor: 0.1 };
        let same = |rate| rate;
        Catalogue::new("schedule")
            .with(with(RateSchedule::Constant), "the same after the warm-up", same)
            .with(with(RateSchedule::Linear { steps, end: 0.0 }), "falls linearly", same)
            .with(with(RateSchedule::Cosine { steps, end: 0.0 }), "falls along half a cosine", same)
            .with(with(step), "falls by a factor periodically", same)
            .with(with(cycle), "rises and falls, half a cosine each", same)
    }

    /// Refuses invalid values.
    pub(crate) fn check(&self) -> Result<()> {
        let want = "a positive number, or 0 for steps that change nothing";
        let sound = self.base.is_finite() && self.base >= 0.0;
        check_option(sound, "the learning rate", &self.base, want)?;
        let mut own = *self;
        Options::check(self.keyword(), |options| own.options(options))
    }
}

impl NamedOptions for LearningRate {
    fn keyword(&self) -> &'static str {
        match self.schedule {
            RateSchedule::Constant => "constant",
            RateSchedule::Linear { .. } => "linear",
            RateSchedule::Cosine { .. } => "cosine",
            RateSchedule::Step { .. } => "step",
            RateSchedule::OneCycle { .. } => "one-cycle",
        }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        let LearningRate { base, warmup, start, schedule } = self;
        options.field("base", base, 0.0.., "largest learning rate")?;
        let is_cycle = matches!(schedule, RateSchedule::OneCycle { .. });
        if is_cycle {
            options.require(*warmup == 0, "warmup", warmup, "0: the cycle has its own rise")?;
        } else {
            options.field("warmup", warmup, .., "steps in which the rate rises to its base")?;
            options.field("start", start, 0.0..=1.0, "factor in the first step of the warm-up")?;
        }
        schedule.options(*warmup, options)
    }
}

impl fmt::Display for LearningRate {
    /// Writes the spelling with all options; a constant rate without warm-up as a number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self == LearningRate::from(self.base) {
            true => f.write_str(&self.base.to_text()),
            false => self.full().fmt(f),
        }
    }
}

impl FromStr for LearningRate {
    type Err = Error;

    /// Parses the output of [`Display`](fmt::Display).
    fn from_str(text: &str) -> Result<Self> {
        match f64::from_word(text) {
            Some(base) => Ok(base.into()),
            None => LearningRate::catalogue(LearningRate::default().base, 1).named(text),
        }
    }
}

impl RateSchedule {
    /// Returns the factor after `step` steps, counted from the end of the warm-up.
    fn factor(&self, step: u64, warmup: u64) -> f64 {
        let part = |steps: u64| (step as f64 / steps.saturating_sub(warmup) as f64).min(1.0);
        match *self {
            RateSchedule::Constant => 1.0,
            RateSchedule::Linear { steps, end } => between(1.0, end, part(steps)),
            RateSchedule::Cosine { steps, end } => annealed(1.0, end, part(steps)),
            RateSchedule::Step { every, factor } => factor.powf((step / every.max(1)) as f64),
            RateSchedule::OneCycle { steps, rise, start, end } => {
                let top = rise * steps as f64 - 1.0;
                let last = steps as f64 - 1.0;
                let step = (step as f64).min(last);
                if step <= top {
                    annealed(start, 1.0, step / top)
                } else {
                    annealed(1.0, end, (step - top) / (last - top))
                }
            }
        }
    }

    fn options(&mut self, warmup: u64, options: &mut Options) -> Result<()> {
        let long = "steps after which the end is reached, including the warm-up";
        match self {
            RateSchedule::Constant => Ok(()),
            RateSchedule::Linear { steps, end } | RateSchedule::Cosine { steps, end } => {
                options.field("steps", steps, .., long)?;
                options.require(*steps > warmup, "steps", steps, "more than those of the warm-up")?;
                options.field("end", end, 0.0.., "factor at the end")
            }
            RateSchedule::Step { every, factor } => {
                options.field("every", every, 1.., "steps from one multiplication to the next")?;
                options.field("factor", factor, above(0.0), "factor of each multiplication")
            }
            RateSchedule::OneCycle { steps, rise, start, end } => {
                options.field("steps", steps, .., "steps of the cycle")?;
                options.field(
                    "rise",
                    rise,
                    above(0.0).below(1.0),
                    "share of the steps in which the rate rises",
                )?;
                options.require(*rise * *steps as f64 > 1.0, "steps", steps, "more than 1 / rise")?;
                options.field("start", start, 0.0..=1.0, "factor in the first step")?;
                options.field("end", end, 0.0..=1.0, "factor in the last step")
            }
        }
    }
}

/// Interpolates linearly between two numbers.
fn between(from: f64, to: f64, part: f64) -> f64 {
    from + (to - from) * part
}

/// Interpolates between two numbers along half a cosine.
fn annealed(from: f64, to: f64, part: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * part).cos()) / 2.0
}
