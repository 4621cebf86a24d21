//! Runs the suite, and writes docs/which-algorithm.md: `cargo run --release --example suite --features programs`; `--help`
//! lists the options.

use clap::Parser;
use hexagram::algorithms::Registry;
use hexagram_lab::program::{SuiteOptions, console, suite};
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = suite(&Registry::built_in(), &SuiteOptions::parse());
    console::ended("suite", outcome.map(|()| 0))
}
