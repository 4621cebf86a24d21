//! The published orderings, judged by the record that is kept beside the suite's page: nothing is trained.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram_lab::suite::{Verdict, kept, orderings};
use std::path::Path;

#[test]
fn every_ordering_comes_out_as_it_says() {
    let results = kept(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")).unwrap();
    for claim in orderings() {
        let ratio = claim.paired(&results).ratio();
        assert_eq!(claim.judge(&results), claim.verdict, "{}: {ratio:?}", claim.text);
    }
}

#[test]
fn of_40_orderings_36_hold() {
    assert_eq!(orderings().count(), 40);
    assert_eq!(orderings().filter(|claim| claim.verdict == Verdict::Holds).count(), 36);
}
