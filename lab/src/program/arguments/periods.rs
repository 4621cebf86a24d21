//! Numbers of steps that are representative of an algorithm: whole periods.

use hexagram::algorithms::AnyAlgorithm;

/// Steps of an algorithm of unknown period, which may communicate differently in every step.
const UNKNOWN: u32 = 200;

/// Returns the smallest multiple of the algorithm's period that is at least `least`.
pub(crate) fn whole_periods(algorithm: &AnyAlgorithm, least: u32) -> u32 {
    let Some(period) = algorithm.period() else { return least.max(UNKNOWN) };
    let period = u32::try_from(period).unwrap_or(u32::MAX);
    least.div_ceil(period).saturating_mul(period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram::algorithms::Registry;

    #[test]
    fn periods_are_whole() {
        for (algorithm, least, steps) in [
            ("gradient-allreduce", 20, 20),
            ("local-sgd(period=64)", 20, 64),
            ("local-sgd(period=7)", 20, 21),
            ("slowmo(period=6, base=local-sgd(period=4))", 20, 24),
        ] {
            let algorithm = Registry::built_in().named(algorithm).unwrap();
            assert_eq!(whole_periods(&algorithm, least), steps, "{algorithm}");
        }
    }
}
