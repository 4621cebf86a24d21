//! Balance of ranks: the cost of the costliest rank of a step divided by the mean.

/// Balance of the ranks over the steps added so far.
///
/// In a synchronous step all ranks wait for the costliest one. With a ratio of max to mean of 1.25, ranks wait for a
/// fifth of the time.
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
    /// Adds a step with the cost of each rank. Costs must be finite and not negative.
    pub fn add(&mut self, ranks: impl IntoIterator<Item = f64>) {
        let costs: Vec<f64> = ranks.into_iter().collect();
        let max = costs.iter().copied().fold(0.0, f64::max);
        // In units of the costliest rank, since the sum of all costs may overflow.
        let sum: f64 = costs.iter().map(|cost| cost / max).sum();
        let ratio = if max > 0.0 { costs.len() as f64 / sum } else { 1.0 };
        self.steps += 1;
        self.sum += ratio;
        self.worst = self.worst.max(ratio);
    }

    /// Returns the ratio of max to mean cost, averaged over steps; 1 is perfect.
    pub fn mean(&self) -> f64 {
        if self.steps > 0 { self.sum / self.steps as f64 } else { 1.0 }
    }

    /// Returns the ratio of max to mean cost in the worst step; 1 is perfect.
    pub fn worst(&self) -> f64 {
        self.worst.max(1.0)
    }
}
