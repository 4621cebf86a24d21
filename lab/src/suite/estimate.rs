//! Means of a few runs, with what can be said of them.

/// Quantiles 0.975 of Student's t for 1, 2, … degrees of freedom; beyond these, the normal distribution's.
const T: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

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
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let degrees = count - 1;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / degrees as f64;
        let half = match degrees {
            0 => f64::INFINITY,
            _ => T.get(degrees - 1).unwrap_or(&1.96) * (variance / count as f64).sqrt(),
        };
        Some(Estimate { mean, half, count })
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
    }
}
