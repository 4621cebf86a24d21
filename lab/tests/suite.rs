//! The short form of the suite: every algorithm learns, and what the suite is to show comes out of its numbers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use hexagram::algorithms::registry;
use hexagram_lab::suite::{Measure, Place, Results, Suite, run_all};

fn short() -> Results {
    let suite = Suite::short(registry::all()).unwrap();
    let mut records = Vec::new();
    let take = |record| {
        records.push(record);
        Ok(())
    };
    run_all(suite.cells(), take).unwrap();
    assert_eq!(records.len(), suite.cells().len());
    Results::new(records)
}

fn place(algorithm: &str, task: &str, partition: &str) -> Place {
    Place {
        algorithm: algorithm.to_owned(),
        task: task.to_owned(),
        partition: partition.to_owned(),
        ranks: 4,
    }
}

#[test]
fn the_short_suite_shows_what_it_is_to_show() {
    let results = short();
    every_algorithm_learns(&results);
    bias_of_heterogeneous_data(&results);
}

fn every_algorithm_learns(results: &Results) {
    for record in results.records() {
        let first = record.curve[0].loss;
        // A majority of signs hardly learns where ranks have different labels.
        let share = if record.place.partition == "equal" { 0.8 } else { 1.0 };
        assert!(record.last().loss < share * first, "{}: {} of {first}", record.place, record.last().loss);
    }
}

/// On quadratics, with the most different data, algorithms without bias end at the optimum, on every rank, and gossip of
/// parameters does not.
fn bias_of_heterogeneous_data(results: &Results) {
    let loss = |algorithm: &str| {
        let place = place(algorithm, "quadratics", "dirichlet(0.1)");
        results.estimate(&place, Measure::OwnLoss).unwrap_or_else(|| panic!("{algorithm} was not run")).mean
    };
    let first = results.at(&place("d-psgd", "quadratics", "dirichlet(0.1)"))[0].curve[0].loss;
    let beyond = |algorithm: &str| loss(algorithm) - loss("gradient-allreduce");
    for algorithm in ["gradient-tracking", "exact-diffusion", "extra", "ef21"] {
        assert!(beyond(algorithm).abs() < 0.01 * first, "{algorithm}: {}", beyond(algorithm));
    }
    assert!(beyond("d-psgd") > 0.01 * first);
}
