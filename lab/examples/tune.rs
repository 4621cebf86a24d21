//! Tries step sizes for each algorithm and task, and prints the rows of lab/src/suite/defaults.rs: `cargo run --release
//! -p hexagram-lab --example tune`. With names of algorithms, only these are tuned.

use hexagram::Result;
use hexagram::algorithms::registry;
use hexagram::physical::stdout::print;
use hexagram_lab::suite::{Suite, tune};

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let suite = Suite::whole(registry::all())?;
    for algorithm in &suite.algorithms {
        if !(names.is_empty() || names.iter().any(|name| name == algorithm.name())) {
            continue;
        }
        for lesson in &suite.lessons {
            let found = tune(algorithm, lesson)?;
            let _ = print(&format!("{} {} {found:?}", algorithm.name(), lesson.task.name()));
        }
    }
    Ok(())
}
