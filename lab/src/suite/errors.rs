//! Errors of each algorithm on the suite's digits, as a table in the binary. A program shows them next to speeds
//! where it has no record of the suite.

/// The table, a line an algorithm: its name, and mean and half of the interval of both differences.
const TABLE: &str = include_str!("../../data/errors.txt");

/// Errors of an algorithm on held-out digits above those of gradient-allreduce with the same seeds, in percentage
/// points, over all numbers of ranks of the suite. The interval is of 95 %. Both are infinite if a run diverged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorsAbove {
    /// With equal data on all ranks.
    pub like: MeanDifference,
    /// With Dirichlet(0.1) data, which differ most.
    pub skewed: MeanDifference,
}

/// Mean of some differences, and half of its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanDifference {
    /// Mean of the differences.
    pub mean: f64,
    /// Half of the width of its interval.
    pub half: f64,
}

impl MeanDifference {
    /// Returns true if it is above 0 by more than chance, or by more than a point, which chance may hide.
    pub fn is_worse(self) -> bool {
        !(self.mean <= self.half && self.mean <= 1.0)
    }
}

impl ErrorsAbove {
    /// Returns the errors of an algorithm with its default options, by its name; `None` if the suite has not run it.
    ///
    /// ```
    /// use hexagram_lab::suite::ErrorsAbove;
    ///
    /// let quantized = ErrorsAbove::of("bytegrad").unwrap();
    /// assert!(!quantized.like.is_worse() && !quantized.skewed.is_worse());
    /// assert!(ErrorsAbove::of("local-sgd").unwrap().skewed.is_worse());
    /// ```
    pub fn of(algorithm: &str) -> Option<Self> {
        let found = TABLE.lines().find(|line| line.split(' ').next() == Some(algorithm))?;
        let mut numbers = found.split(' ').skip(1).map_while(|word| word.parse().ok());
        let mut next = || Some(MeanDifference { mean: numbers.next()?, half: numbers.next()? });
        Some(ErrorsAbove { like: next()?, skewed: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::orderings::SKEWED;
    use crate::suite::{Estimate, MatrixCell, PARTITIONS, ResultMeasure, Results, kept};
    use hexagram::algorithms::registry;
    use std::collections::BTreeSet;
    use std::fmt::Write;
    use std::path::Path;

    /// Algorithm that the others are compared to.
    const REFERENCE: &str = "gradient-allreduce";

    /// Returns the table of results, as it is compiled in.
    fn table(results: &Results) -> String {
        let plain = |name: &&String| !name.contains('(');
        let names: BTreeSet<&String> =
            results.records().iter().map(|record| &record.place.algorithm).filter(plain).collect();
        let mut text = String::new();
        for name in names {
            let differences = [PARTITIONS[0].to_string(), SKEWED.to_owned()]
                .map(|partition| shown(difference(results, name, &partition)));
            let _ = writeln!(text, "{name} {}", differences.join(" "));
        }
        text
    }

    fn difference(results: &Results, algorithm: &str, partition: &str) -> Option<Estimate> {
        let ranks: BTreeSet<usize> = results.records().iter().map(|record| record.place.ranks).collect();
        let place = |algorithm: &str, ranks: usize| MatrixCell {
            algorithm: algorithm.to_owned(),
            task: "digits".to_owned(),
            partition: partition.to_owned(),
            ranks,
        };
        let pairs: Vec<[MatrixCell; 2]> =
            ranks.into_iter().map(|ranks| [place(algorithm, ranks), place(REFERENCE, ranks)]).collect();
        results.of_matrix().difference(&pairs, ResultMeasure::Errors)
    }

    /// Returns mean and half of the interval in percentage points.
    fn shown(difference: Option<Estimate>) -> String {
        let points = |share: f64| match share.is_finite() {
            // A rounding error is not a difference.
            true => format!("{:.2}", (1e4 * share).round() / 1e2 + 0.0),
            false => "inf".to_owned(),
        };
        difference.map_or_else(
            || "inf inf".to_owned(),
            |found| format!("{} {}", points(found.mean), points(found.half)),
        )
    }

    #[test]
    fn the_table_is_that_of_the_record_that_is_kept() {
        let kept = kept(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")).unwrap();
        let table = table(&kept);
        assert!(table == TABLE, "write this into lab/data/errors.txt:\n{table}");
        for algorithm in registry::all() {
            assert!(ErrorsAbove::of(algorithm.name()).is_some(), "{algorithm}: run the suite");
        }
    }

    #[test]
    fn worse_is_what_is_beyond_the_interval_or_a_point_or_diverged() {
        let worse = |mean: f64, half: f64| MeanDifference { mean, half }.is_worse();
        assert!(worse(0.2, 0.1) && worse(f64::INFINITY, f64::INFINITY) && worse(f64::NAN, 1.0));
        assert!(worse(5.0, 5.1) && !worse(0.1, 0.2) && !worse(-0.3, 0.1));
        let unknown = ErrorsAbove::of("gradient");
        assert_eq!(unknown, None);
    }
}
