//! A search for better settings, and the times of its steps.

use super::options::{Autotune, Tuning};
use super::search::Search;
use crate::engine::EngineOptions;
use hexagram_logical::runtime::{self, Instant};
use std::time::Duration;

/// A search in progress, or its result.
pub(crate) struct Tuner {
    pub(super) autotune: Autotune,
    /// Search in progress; `None` before the first trial.
    pub(super) search: Option<Search>,
    /// Number of steps of the warm-up or the trial so far.
    pub(super) steps: u64,
    pub(super) taken: Vec<Duration>,
    pub(super) last: Option<Instant>,
    pub(super) done: bool,
}

impl Tuner {
    pub(crate) fn new(options: &EngineOptions) -> Option<Self> {
        let autotune = options.autotune.clone()?;
        Some(Tuner { autotune, search: None, steps: 0, taken: Vec::new(), last: None, done: false })
    }

    /// Discards the times of the warm-up or trial that has ended.
    pub(super) fn start_over(&mut self) {
        self.steps = 0;
        self.taken.clear();
    }

    /// Counts a step; returns true if it was the last of the warm-up or of a trial.
    pub(super) fn count(&mut self, present: Tuning) -> bool {
        let now = runtime::now();
        let took = self.last.replace(now).map_or(Duration::ZERO, |last| now - last);
        self.steps += 1;
        if self.search.is_none() {
            return self.steps >= self.autotune.warm_up;
        }
        if self.steps > 1 {
            let cost = self.autotune.cost.as_ref();
            self.taken.push(cost.map_or(took, |cost| (cost.0)(present)));
        }
        self.taken.len() as u64 >= self.autotune.steps
    }
}

/// Returns the median, in seconds.
pub(super) fn median(taken: &mut [Duration]) -> f64 {
    taken.sort_unstable();
    taken.get(taken.len() / 2).copied().unwrap_or_default().as_secs_f64()
}
