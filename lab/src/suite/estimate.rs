//! Means of a few runs, with confidence intervals.

/// Quantiles 0.975 of Student's t for 1, 2, … degrees of freedom.
const T: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// Returns the quantile 0.975 of Student's t. It is infinite for 0 degrees of freedom. Beyond the table it follows
/// from the first terms of its expansion around the normal quantile, right to three digits.
fn quantile(degrees: usize) -> f64 {
    let inverse = 1.0 / degrees as f64;
    match degrees {
        0 => f64::INFINITY,
        _ => T.get(degrees - 1).copied().unwrap_or(1.96 + 2.372 * inverse + 2.8 * inverse * inverse),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the sum of squared deviations from the mean.
fn deviations(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

/// Mean of some values, and its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Mean of the values.
    pub mean: f64,
    /// Half the width of the 95 % confidence interval of the mean, by Student's t; infinite for one value.
    pub half: f64,
    /// Number of values.
    pub count: usize,
}

impl Estimate {
    /// Estimates the mean of values; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let degrees = count.checked_sub(1)?;
        let half = match degrees {
            0 => f64::INFINITY,
            _ => quantile(degrees) * (deviations(values) / degrees as f64 / count as f64).sqrt(),
        };
        Some(Estimate { mean: mean(values), half, count })
    }

    /// Estimates the mean over some places of runs, each run with its seed. Runs with the same seed share random draws, even at
    /// different places. So the values of a seed are averaged first, and the interval shows the scatter between seeds. Left out
    /// are places without runs, and seeds that are missing at one of the places; `None` if nothing remains.
    pub fn by_seed(places: &[Vec<(u64, f64)>]) -> Option<Self> {
        let places: Vec<&Vec<(u64, f64)>> = places.iter().filter(|runs| !runs.is_empty()).collect();
        let of_seed = |seed: u64| -> Option<f64> {
            let found = |runs: &&Vec<(u64, f64)>| runs.iter().find(|run| run.0 == seed).map(|run| run.1);
            places.iter().map(found).collect::<Option<Vec<f64>>>().map(|values| mean(&values))
        };
        let values: Vec<f64> = places.first()?.iter().filter_map(|run| of_seed(run.0)).collect();
        Self::of(&values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        assert_eq!(Estimate::of(&[]), None);
        let three = Estimate::of(&[1.0, 2.0, 3.0]).unwrap();
        assert!((three.mean - 2.0).abs() < 1e-12 && (three.half - 4.303 / 3f64.sqrt()).abs() < 1e-9);
        assert!(Estimate::of(&[5.0]).unwrap().half.is_infinite());
        for (degrees, known) in [(12, 2.179), (24, 2.064), (36, 2.028), (120, 1.980)] {
            assert!((quantile(degrees) - known).abs() < 2e-3, "{degrees}");
        }
    }

    /// Means of 51, 52 and 53 for the seeds, however far places are from each other: not six values, of which the interval
    /// would be 2.776 · √(2/3) / 2. Opposite deviations at different places cancel.
    #[test]
    fn a_seed_counts_once_at_however_many_places() {
        let runs = |values: [f64; 3]| [7, 8, 9].into_iter().zip(values).collect::<Vec<(u64, f64)>>();
        let one = runs([1.0, 2.0, 3.0]);
        let found = Estimate::by_seed(&[one.clone(), vec![], runs([101.0, 102.0, 103.0])]).unwrap();
        assert_eq!((found.mean, found.count), (52.0, 3));
        assert!((found.half - 4.303 / 3f64.sqrt()).abs() < 1e-12);
        let found = Estimate::by_seed(&[one.clone(), runs([3.0, 2.0, 1.0])]).unwrap();
        assert_eq!(found, Estimate { mean: 2.0, half: 0.0, count: 3 });
        let found = Estimate::by_seed(&[one.clone(), vec![(9, 5.0), (7, 5.0), (1, 0.0)]]).unwrap();
        assert_eq!((found.mean, found.count), (3.5, 2));
        assert_eq!(Estimate::by_seed(&[one, vec![(1, 0.0)]]), None);
        assert_eq!(Estimate::by_seed(&[]), None);
    }
}
