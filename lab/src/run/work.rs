//! Work of each rank, where samples cost differently: tokens by step, waiting, and the gain from balancing.

use hexagram::sampler::Balance;
use serde_json::{Value, json};

/// Work of all ranks in some steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct StepWork {
    /// Tokens of each rank, by step.
    pub(super) tokens: Vec<Vec<f64>>,
    /// Seconds that each rank waited for others, in communication.
    pub(super) waited: Vec<f64>,
    /// Seconds of the steps, by rank.
    pub(super) seconds: Vec<f64>,
    /// Tokens of each rank in the same epochs, by step, if samples were given to ranks at random.
    pub(super) at_random: Vec<Vec<f64>>,
}

impl StepWork {
    /// Adds later steps of the same ranks.
    pub(super) fn add(&mut self, other: StepWork) {
        self.waited.resize(other.waited.len(), 0.0);
        self.seconds.resize(other.seconds.len(), 0.0);
        self.waited.iter_mut().zip(other.waited).for_each(|(sum, waited)| *sum += waited);
        self.seconds.iter_mut().zip(other.seconds).for_each(|(sum, seconds)| *sum += seconds);
        self.tokens.extend(other.tokens);
        self.at_random.extend(other.at_random);
    }

    /// Returns the tokens that all ranks together trained on, a second.
    pub(super) fn tokens_per_s(&self) -> f64 {
        let longest = self.seconds.iter().copied().fold(0.0, f64::max);
        self.tokens.iter().flatten().sum::<f64>() / longest
    }

    /// Returns the share of the time that each rank waited for others, from 0 to 1.
    pub(super) fn waiting(&self) -> Vec<f64> {
        self.waited.iter().zip(&self.seconds).map(|(waited, seconds)| waited / seconds).collect()
    }

    /// Returns the tokens of the busiest rank over those of the average one.
    pub(super) fn balance(&self) -> Balance {
        let mut balance = Balance::default();
        self.tokens.iter().for_each(|ranks| balance.add(ranks.iter().copied()));
        balance
    }

    /// Returns how many times as fast the steps are, by counted tokens, as if samples were given to ranks at random.
    pub(super) fn gain(&self) -> f64 {
        duration(&self.at_random) / duration(&self.tokens)
    }

    /// Returns every figure, with its name.
    pub(super) fn fields(&self) -> Vec<(&'static str, Value)> {
        let balance = self.balance();
        vec![
            ("tokens_per_s", json!(self.tokens_per_s())),
            ("waiting", json!(self.waiting())),
            ("balance", json!(balance.mean())),
            ("worst_balance", json!(balance.worst())),
            ("gain", json!(self.gain())),
        ]
    }

    /// Returns a line for people.
    pub(super) fn text(&self) -> String {
        let waiting: Vec<String> =
            self.waiting().iter().map(|share| format!("{:.1}", 100.0 * share)).collect();
        let balance = self.balance();
        format!(
            "{:.0} tokens/s; ranks wait {} % of the time; the busiest rank has {:.3} times the mean tokens, {:.3} at worst; \
             steps are {:.2} times as fast as at random",
            self.tokens_per_s(),
            waiting.join(", "),
            balance.mean(),
            balance.worst(),
            self.gain()
        )
    }
}

/// Returns the time of some steps per token, if each step takes the time of its busiest rank.
fn duration(steps: &[Vec<f64>]) -> f64 {
    let busiest = steps.iter().map(|ranks| ranks.iter().copied().fold(0.0, f64::max));
    busiest.sum::<f64>() / steps.iter().flatten().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_take_the_time_of_their_busiest_rank() {
        let epoch = StepWork {
            tokens: vec![vec![3.0, 3.0], vec![2.0, 2.0]],
            waited: vec![0.5, 0.25],
            seconds: vec![1.0, 1.0],
            at_random: vec![vec![4.0, 2.0], vec![1.0, 3.0]],
        };
        let mut work = StepWork::default();
        work.add(epoch.clone());
        assert_eq!(work, epoch);
        work.add(epoch);
        assert_eq!((work.tokens_per_s(), work.waiting()), (10.0, vec![0.5, 0.25]));
        assert_eq!((work.balance().mean(), work.gain()), (1.0, 1.4));
    }
}
