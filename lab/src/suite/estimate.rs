//! Means of a few runs, with what can be said of them.

/// Quantiles 0.975 of Student's t for 1, 2, … degrees of freedom.
const T: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// Returns the quantile 0.975 of Student's t: infinite for 0 degrees of freedom, and beyond the table by the first terms of
/// its expansion around the normal distribution's, right to three digits.
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
        Self::pooled(&[values.to_vec()])
    }

    /// Estimates the mean of the means of groups that scatter by themselves, as runs at places that differ: the interval is
    /// of what scatters within the groups. Groups without values are left out; `None` without any.
    pub fn pooled(groups: &[Vec<f64>]) -> Option<Self> {
        let groups: Vec<&Vec<f64>> = groups.iter().filter(|values| !values.is_empty()).collect();
        if groups.is_empty() {
            return None;
        }
        let count: usize = groups.iter().map(|values| values.len()).sum();
        let means: Vec<f64> = groups.iter().map(|values| mean(values)).collect();
        let degrees = count - groups.len();
        let variance = groups.iter().map(|values| deviations(values)).sum::<f64>() / degrees.max(1) as f64;
        let of_means: f64 = groups.iter().map(|values| variance / values.len() as f64).sum();
        let half = match degrees {
            0 => f64::INFINITY,
            _ => quantile(degrees) * of_means.sqrt() / groups.len() as f64,
        };
        Some(Estimate { mean: mean(&means), half, count })
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

    /// Two groups far from each other, of variance 1 each: √(2 (1/3)) / 2 around the middle, with four degrees of freedom.
    #[test]
    fn what_differs_between_groups_does_not_widen_the_interval() {
        let found = Estimate::pooled(&[vec![1.0, 2.0, 3.0], vec![], vec![101.0, 102.0, 103.0]]).unwrap();
        assert_eq!(found.mean, 52.0);
        assert!((found.half - 2.776 * (2.0f64 / 3.0).sqrt() / 2.0).abs() < 1e-12 && found.count == 6);
    }
}
