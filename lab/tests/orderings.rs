//! The published orderings, judged by the record next to the suite's page; no training runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram_lab::suite::{Claim, MatrixCell, OrderingVerdict, kept, orderings};
use hexagram_lab::task::Quadratics;
use std::path::{Path, PathBuf};

/// Returns the folder of the page and of the record.
fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

#[test]
fn every_ordering_comes_out_as_it_says() {
    let results = kept(&docs()).unwrap();
    for claim in orderings() {
        let ratio = claim.paired(&results).ratio();
        assert_eq!(claim.judge(&results), claim.verdict, "{}: {ratio:?}", claim.text);
    }
}

#[test]
fn of_40_orderings_36_hold() {
    assert_eq!(orderings().count(), 40);
    let held = |claim: &&Claim| claim.verdict == OrderingVerdict::Holds;
    assert_eq!(orderings().filter(held).count(), 36);
    // As docs/which-algorithm.md says about the unchanged ones.
    let chosen = || orderings().filter(|claim| claim.changed.is_empty());
    assert_eq!([chosen().count(), chosen().filter(held).count()], [31, 27]);
}

#[test]
fn the_page_has_every_reason_and_every_change() {
    let page = std::fs::read_to_string(docs().join("which-algorithm.md")).unwrap();
    for text in orderings().flat_map(|claim| [claim.explanation, claim.changed]) {
        assert!(page.contains(text), "write the page anew: it lacks `{text}`");
    }
}

/// With every seed, 25 ranks and the most skewed data: the distance of f(x) above its optimum, averaged over the
/// replicas.
#[test]
fn biases_of_the_record_are_within_one_percent_where_they_should_be() {
    let results = kept(&docs()).unwrap();
    let least = Quadratics::new(0).unwrap().least();
    let beyond = |algorithm: &str| -> Vec<f64> {
        let place = MatrixCell {
            algorithm: algorithm.to_owned(),
            task: "quadratics".to_owned(),
            partition: "dirichlet(0.1)".to_owned(),
            ranks: 25,
        };
        results.at(&place).into_iter().map(|record| record.own_loss / least).collect()
    };
    for algorithm in ["gradient-tracking", "exact-diffusion", "ef21"] {
        let found = beyond(algorithm);
        assert!(found.len() == 5 && found.iter().all(|bias| bias.abs() < 0.01), "{algorithm}: {found:?}");
    }
    let found = beyond("d-psgd");
    assert!(found.len() == 5 && found.iter().all(|bias| *bias > 0.04), "{found:?}");
}
