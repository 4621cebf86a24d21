//! The short form of the suite: every algorithm learns, in line with the record next to docs/which-algorithm.md, and
//! the suite's results show the expected effects.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use hexagram::algorithms::registry;
use hexagram_lab::suite::{MatrixCell, ResultMeasure, Results, Suite, SuiteRecord, kept, run_all};
use hexagram_lab::task::Quadratics;
use std::path::Path;

fn short() -> Results {
    let suite = Suite::short(registry::all()).unwrap();
    let mut records = Vec::new();
    let take = |record| {
        records.push(record);
        Ok(())
    };
    run_all(suite.cells().unwrap(), take).unwrap();
    assert_eq!(records.len(), suite.cells().unwrap().len());
    Results::new(records)
}

fn place(algorithm: &str, task: &str, partition: &str, ranks: usize) -> MatrixCell {
    MatrixCell {
        algorithm: algorithm.to_owned(),
        task: task.to_owned(),
        partition: partition.to_owned(),
        ranks,
    }
}

#[test]
fn every_algorithm_learns_as_the_kept_record_says() {
    let results = short();
    let kept = kept(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")).unwrap();
    for record in results.records() {
        let same = |other: &&SuiteRecord| other.seed == record.seed;
        // An algorithm that is new has no record until the suite is run.
        if let Some(kept) = kept.at(&record.place).into_iter().find(same) {
            compare(record, kept);
        }
    }
    for record in results.records() {
        let first = record.curve[0].loss;
        // A majority of signs hardly learns where ranks have different labels.
        let share = if record.place.partition == "equal" { 0.8 } else { 1.0 };
        assert!(record.last().loss < share * first, "{}: {} of {first}", record.place, record.last().loss);
    }
}

/// An outer rate of 1000 overflows, and then eight bits cannot represent the values.
#[test]
fn a_training_that_diverges_is_a_record_and_no_end_of_the_suite() {
    let name = "diloco(period=1, outer=nesterov(learning_rate=1000), codec=min-max8)";
    let suite = Suite::whole(registry::all()).unwrap();
    let place = place(name, "quadratics", "equal", 4);
    let mut records = Vec::new();
    let take = |record| {
        records.push(record);
        Ok(())
    };
    run_all(vec![suite.cell(&place, 0).unwrap()], take).unwrap();
    let read = SuiteRecord::parse(&records[0].json()).unwrap();
    assert_eq!(read, records[0]);
    assert_eq!([read.last().loss, read.own_loss], [f64::INFINITY; 2]);
    for measure in [
        ResultMeasure::Loss,
        ResultMeasure::Errors,
        ResultMeasure::Bytes,
        ResultMeasure::PeakBytes,
        ResultMeasure::BytesTo(0.5),
    ] {
        assert_eq!(measure.of(&read), f64::INFINITY, "{measure}");
    }
}

/// Compares a run to the record. Quadratics are plain arithmetic, and the record keeps six digits. Exponentials and
/// logarithms of the digits are the system's, whose last bits may differ; a step that depends on signs or on the
/// largest elements amplifies that.
fn compare(run: &SuiteRecord, kept: &SuiteRecord) {
    let tolerance = if run.place.task == "digits" { 0.1 } else { 1e-4 };
    let near = |one: f64, other: f64| (one - other).abs() <= tolerance * one.abs() + 1e-9;
    // Ranks may agree on a little more before the first step. One number more in each of 200 steps is no longer that.
    let bytes = (run.last().bytes - kept.last().bytes).abs();
    let same = near(run.own_loss, kept.own_loss) && bytes <= tolerance * kept.last().bytes + 1024.0;
    let seed = run.seed;
    assert!(
        same && run.learning_rate == kept.learning_rate,
        "{}, seed {seed}, is not as docs/which-algorithm.jsonl.gz has it: loss {} and was {}, {} bytes and were {}; run the \
         suite with it anew",
        run.place,
        run.own_loss,
        kept.own_loss,
        run.last().bytes,
        kept.last().bytes
    );
}

/// On quadratics with the most skewed data and 25 ranks: the loss f(x) over all samples minus the optimum's, averaged
/// over the replicas after 200 steps. Algorithms without bias end within 1 % of all-reduce's; gossip of parameters on
/// a ring does not.
#[test]
fn bias_of_heterogeneous_data() {
    let suite = Suite::whole(registry::all()).unwrap();
    let least = Quadratics::new(0).unwrap().least();
    let loss = |algorithm: &str| {
        let place = place(algorithm, "quadratics", "dirichlet(0.1)", 25);
        suite.cell(&place, 0).unwrap().run().unwrap().own_loss + least
    };
    let all_reduce = loss("gradient-allreduce");
    let beyond = |algorithm: &str| (loss(algorithm) - all_reduce) / all_reduce;
    for algorithm in ["gradient-tracking", "exact-diffusion", "ef21"] {
        assert!(beyond(algorithm).abs() < 0.01, "{algorithm}: {}", beyond(algorithm));
    }
    assert!(beyond("d-psgd") > 0.04, "{}", beyond("d-psgd"));
}
