//! Metrics: named numbers that hooks report, and the training loop reads after the step.

use hexagram_logical::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Rule that combines the numbers with one name, from all hooks and buckets of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// Sum of the numbers, for counts.
    Sum,
    /// Mean of the numbers, with equal weights.
    Mean,
    /// Largest number, for values that should be equal in all buckets.
    Max,
    /// Root of the sum of squares: norms of buckets become the norm of the model.
    Norm,
}

/// Numbers with one name so far.
#[derive(Debug, Clone, Copy)]
struct CombinedMetric {
    rule: Combine,
    /// State of the rule: a sum, the largest number, or a sum of squares.
    kept: f64,
    count: u64,
}

impl CombinedMetric {
    fn new(rule: Combine) -> Self {
        let kept = if rule == Combine::Max { f64::NEG_INFINITY } else { 0.0 };
        CombinedMetric { rule, kept, count: 0 }
    }

    fn add(&mut self, value: f64) {
        self.count += 1;
        match self.rule {
            Combine::Sum | Combine::Mean => self.kept += value,
            Combine::Norm => self.kept += value * value,
            // A NaN must not be lost among numbers.
            Combine::Max if value.is_nan() || self.kept.is_nan() => self.kept = f64::NAN,
            Combine::Max => self.kept = self.kept.max(value),
        }
    }

    fn value(&self) -> f64 {
        match self.rule {
            Combine::Sum | Combine::Max => self.kept,
            Combine::Mean => self.kept / self.count as f64,
            Combine::Norm => self.kept.sqrt(),
        }
    }
}

/// Collector of the metrics of a step, shared by all hooks of a rank.
#[derive(Debug, Clone, Default)]
pub(crate) struct MetricsCollector(Arc<Mutex<BTreeMap<String, CombinedMetric>>>);

impl MetricsCollector {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, CombinedMetric>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a number to those with a name.
    pub(crate) fn add(&self, name: &str, rule: Combine, value: f64) -> Result<()> {
        let mut tallies = self.lock();
        let tally = match tallies.get_mut(name) {
            Some(tally) => tally,
            None => tallies.entry(name.to_owned()).or_insert(CombinedMetric::new(rule)),
        };
        if tally.rule != rule {
            let what = format!("the metric `{name}` is combined by {:?} and by {rule:?}", tally.rule);
            return Err(Error::usage(what, "report all numbers of one name by one rule"));
        }
        tally.add(value);
        Ok(())
    }

    /// Takes the numbers so far, combined.
    pub(crate) fn take(&self) -> BTreeMap<String, f64> {
        let tallies = std::mem::take(&mut *self.lock());
        tallies.into_iter().map(|(name, tally)| (name, tally.value())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined(rule: Combine, values: &[f64]) -> f64 {
        let metrics = MetricsCollector::default();
        values.iter().for_each(|value| metrics.add("m", rule, *value).unwrap());
        metrics.take()["m"]
    }

    #[test]
    fn numbers_of_one_name_are_combined_by_its_rule() {
        let values = [3.0, -4.0, 0.0, 12.0];
        assert_eq!(combined(Combine::Sum, &values), 11.0);
        assert_eq!(combined(Combine::Mean, &values), 2.75);
        assert_eq!(combined(Combine::Max, &values), 12.0);
        assert_eq!(combined(Combine::Norm, &values), 13.0);
        assert_eq!(combined(Combine::Max, &[-2.0, -1.0]), -1.0);
        assert!(combined(Combine::Max, &[f64::NAN, 1.0]).is_nan());
    }

    #[test]
    fn another_rule_for_a_name_is_refused_until_the_next_step() {
        let metrics = MetricsCollector::default();
        metrics.add("drift", Combine::Sum, 1.0).unwrap();
        let error = metrics.add("drift", Combine::Max, 1.0).unwrap_err().to_string();
        assert!(error.contains("`drift` is combined by Sum and by Max"), "{error}");
        assert_eq!(metrics.take().len(), 1);
        metrics.add("drift", Combine::Max, 1.0).unwrap();
    }
}
