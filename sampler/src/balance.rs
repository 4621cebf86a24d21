//! How well ranks are balanced: the costliest rank of a step over the average one. Open this file to compare samplers.

/// What ranks cost in the steps of an epoch, as far as they have been added.
///
/// In a synchronous step all wait for the costliest rank: with a ratio of max to mean of 1.25, a fifth of the time of
/// all ranks is waiting.
///
/// ```
/// let mut balance = hexagram_sampler::Balance::default();
/// balance.add([3.0, 1.0]);
/// balance.add([2.0, 2.0]);
/// assert_eq!((balance.mean(), balance.worst()), (1.25, 1.5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Balance {
    steps: usize,
    sum: f64,
    worst: f64,
}

impl Balance {
    /// Adds a step, in which each rank costs so much.
    pub fn add(&mut self, ranks: impl IntoIterator<Item = f64>) {
        let costs = ranks.into_iter().map(|cost| (cost, cost, 1.0));
        let total = costs.reduce(|one, other| (one.0.max(other.0), one.1 + other.1, one.2 + other.2));
        let (max, sum, count) = total.unwrap_or_default();
        let ratio = if sum > 0.0 { max * count / sum } else { 1.0 };
        self.steps += 1;
        self.sum += ratio;
        self.worst = self.worst.max(ratio);
    }

    /// The ratio of max to mean cost, averaged over steps; 1 is perfect.
    pub fn mean(&self) -> f64 {
        if self.steps > 0 { self.sum / self.steps as f64 } else { 1.0 }
    }

    /// The ratio of max to mean cost in the worst step; 1 is perfect.
    pub fn worst(&self) -> f64 {
        self.worst.max(1.0)
    }
}
