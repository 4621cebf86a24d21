//! The statistical test of an ordering. It compares two sides seed by seed: both ran with the same seeds, on the same
//! data in the same order.
//!
//! It takes the ratio of the two sides' quantities for each seed. If all ratios are positive and finite, it is the
//! paired t-test of their logarithms. The ordering holds if the 95 % interval of their geometric mean lies below the
//! claimed factor, which by chance happens once in 40 times. If a quantity is infinite (an accuracy never reached, a
//! loss that diverges) or 0, it is the sign test. The ordering then holds if enough seeds agree, so that chance
//! explains it at most once in 32 times: all of five, or nine of ten.

use super::Estimate;
use std::fmt;

/// Largest probability by chance with which the sign test shows anything.
const CHANCE: f64 = 1.0 / 32.0;

/// Judgement of an ordering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderingVerdict {
    /// The ordering is as the paper says, beyond the scatter of the seeds.
    Holds,
    /// The mean is as the paper says, but within the scatter of the seeds.
    Undecided,
    /// The mean is not as the paper says.
    Fails,
    /// The suite has not run one of the two sides there.
    Missing,
}

impl fmt::Display for OrderingVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OrderingVerdict::Holds => "holds",
            OrderingVerdict::Undecided => "undecided",
            OrderingVerdict::Fails => "does not",
            OrderingVerdict::Missing => "not run",
        })
    }
}

/// Ratios of the two sides' quantities, better to worse, one for each seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Paired(Vec<f64>);

impl Paired {
    /// Creates the ratios of pairs `[better, worse]`, one for each seed.
    pub fn of(pairs: impl IntoIterator<Item = [f64; 2]>) -> Self {
        Paired(pairs.into_iter().map(|[better, worse]| better / worse).collect())
    }

    /// Returns the logarithms of the ratios with their interval; `None` unless all ratios are positive and finite.
    fn logarithms(&self) -> Option<Estimate> {
        let comparable = self.0.iter().all(|ratio| *ratio > 0.0 && ratio.is_finite());
        let logarithms: Vec<f64> = self.0.iter().map(|ratio| ratio.ln()).collect();
        comparable.then(|| Estimate::of(&logarithms)).flatten()
    }

    /// Returns the geometric mean of the ratios and both ends of its 95 % interval; `None` where one is 0 or infinite.
    pub fn ratio(&self) -> Option<[f64; 3]> {
        let Estimate { mean, half, .. } = self.logarithms()?;
        Some([mean, mean - half, mean + half].map(f64::exp))
    }

    /// Judges whether the ratio is below a factor, as an ordering claims.
    pub fn verdict(&self, factor: f64) -> OrderingVerdict {
        match self.logarithms() {
            _ if self.0.is_empty() => OrderingVerdict::Missing,
            Some(found) if found.mean + found.half < factor.ln() => OrderingVerdict::Holds,
            Some(found) if found.mean < factor.ln() => OrderingVerdict::Undecided,
            Some(_) => OrderingVerdict::Fails,
            None => self.signs(factor),
        }
    }

    /// Judges by the number of seeds that agree with the ordering.
    fn signs(&self, factor: f64) -> OrderingVerdict {
        let count = self.0.len();
        let agree = self.0.iter().filter(|ratio| **ratio < factor).count();
        match () {
            () if by_chance(agree, count) <= CHANCE => OrderingVerdict::Holds,
            () if 2 * agree > count => OrderingVerdict::Undecided,
            () => OrderingVerdict::Fails,
        }
    }
}

/// Returns the probability that at least `heads` of some fair coins show heads.
fn by_chance(heads: usize, coins: usize) -> f64 {
    let mut ways = 1.0;
    let mut sum = 0.0;
    for tails in 0..=coins - heads {
        sum += ways;
        ways *= (coins - tails) as f64 / (tails + 1) as f64;
    }
    sum / 2f64.powi(coins as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: f64 = f64::INFINITY;

    fn verdict<const COUNT: usize>(pairs: [[f64; 2]; COUNT], factor: f64) -> OrderingVerdict {
        Paired::of(pairs).verdict(factor)
    }

    /// Ratios ½·2⁻ᵃ, ½ and ½·2ᵃ: the logarithm's mean is −ln 2 with a deviation of a ln 2, and the interval of three
    /// values ends 4.303/√3 deviations above: below 1 if a < 0.4025.
    #[test]
    fn ratios_are_judged_by_the_interval_of_their_logarithms() {
        let around = |a: f64| [[0.5 * 2f64.powf(-a), 1.0], [0.5, 1.0], [0.5 * 2f64.powf(a), 1.0]];
        assert_eq!(verdict(around(0.40), 1.0), OrderingVerdict::Holds);
        assert_eq!(verdict(around(0.41), 1.0), OrderingVerdict::Undecided);
        assert_eq!(verdict(around(0.0), 0.51), OrderingVerdict::Holds);
        assert_eq!(verdict(around(0.0), 0.5), OrderingVerdict::Fails);
        let [mean, low, high] = Paired::of(around(0.40)).ratio().unwrap();
        assert!((mean - 0.5).abs() < 1e-12 && (low * high - 0.25).abs() < 1e-12);
        assert!((high - 0.5 * 2f64.powf(0.4 * 4.303 / 3f64.sqrt())).abs() < 1e-12);
    }

    /// Each seed has its own level, which cancels in pairs: 1, 10 and 100 differ far more between seeds than between the two
    /// sides.
    #[test]
    fn what_seeds_have_in_common_cancels() {
        assert_eq!(verdict([[0.9, 1.0], [9.1, 10.0], [89.0, 100.0]], 1.0), OrderingVerdict::Holds);
        assert_eq!(verdict([[1.0, 0.9], [10.0, 9.1], [100.0, 89.0]], 1.0), OrderingVerdict::Fails);
    }

    #[test]
    fn what_is_infinite_or_0_is_judged_by_signs() {
        assert_eq!(verdict([[1.0, NEVER]; 5], 1.0), OrderingVerdict::Holds);
        assert_eq!(verdict([[1.0, NEVER]; 4], 1.0), OrderingVerdict::Undecided);
        assert_eq!(verdict([[0.0, 1.0]; 5], 1.0), OrderingVerdict::Holds);
        assert_eq!(verdict([[NEVER, NEVER]; 5], 1.0), OrderingVerdict::Fails);
        assert_eq!(verdict([[0.0, 0.0]; 5], 1.0), OrderingVerdict::Fails);
        let one_otherwise = [[1.0, NEVER], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [2.0, 1.0]];
        assert_eq!(verdict(one_otherwise, 1.0), OrderingVerdict::Undecided);
        assert_eq!(Paired::of(one_otherwise).ratio(), None);
    }

    #[test]
    fn nine_of_ten_seeds_are_no_chance_and_eight_may_be() {
        let of_ten = |agree: usize| {
            let seed = |at: usize| if at < agree { [1.0, NEVER] } else { [NEVER, 1.0] };
            Paired::of((0..10).map(seed)).verdict(1.0)
        };
        assert_eq!(of_ten(9), OrderingVerdict::Holds);
        assert_eq!(of_ten(8), OrderingVerdict::Undecided);
        for (heads, coins, ways) in
            [(10, 10, 1.0), (9, 10, 11.0), (8, 10, 56.0), (0, 10, 1024.0), (5, 5, 32.0)]
        {
            assert_eq!(by_chance(heads, coins), ways / 1024.0);
        }
    }

    #[test]
    fn one_seed_decides_nothing() {
        assert_eq!(verdict([[1.0, 9.0]], 1.0), OrderingVerdict::Undecided);
        assert_eq!(verdict([], 1.0), OrderingVerdict::Missing);
    }
}
