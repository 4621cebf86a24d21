//! Tries step sizes for each algorithm and task, and prints the rows of lab/src/learning_rates.rs: `cargo run --release
//! -p hexagram-lab --example tune --features programs`. With names of algorithms, or spellings of variants, only these are
//! tuned.

use hexagram::Result;
use hexagram::algorithms::registry;
use hexagram::physical::stdout::print;
use hexagram_lab::suite::{Lesson, Suite, tune};
use std::collections::BTreeSet;

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let suite = Suite::whole(registry::all())?;
    for (spelling, lesson) in rows(&suite) {
        if names.is_empty() || names.contains(&spelling) {
            let found = tune(&registry::named(&spelling)?, lesson)?;
            let _ = print(&format!("{spelling} {} {found:?}", lesson.task.name()));
        }
    }
    Ok(())
}

/// Returns each algorithm with each task, and the variants of orderings with theirs.
fn rows(suite: &Suite) -> Vec<(String, &Lesson)> {
    let each = |name: &str| suite.lessons.iter().map(|lesson| (name.to_owned(), lesson)).collect::<Vec<_>>();
    let named = suite.algorithms.iter().flat_map(|algorithm| each(algorithm.name()));
    let others: BTreeSet<(&String, &String)> = suite
        .others
        .iter()
        .filter(|place| place.algorithm.contains('('))
        .map(|place| (&place.algorithm, &place.task))
        .collect();
    let variants = others.into_iter().filter_map(|(algorithm, task)| {
        let lesson = suite.lessons.iter().find(|lesson| lesson.task.name() == task.as_str())?;
        Some((algorithm.clone(), lesson))
    });
    named.chain(variants).collect()
}
