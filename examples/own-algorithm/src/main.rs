//! Trains, compares and measures any algorithm, including this crate's: `cargo run --release -p
//! hexagram-own-algorithm -- compare gradient-allreduce adaptive-local-sgd`, or the program under `hexagram run -n 4
//! --`.

use hexagram::algorithms::Registry;
use hexagram_own_algorithm::AdaptiveLocalSgd;
use std::process::ExitCode;

fn main() -> ExitCode {
    let own = AdaptiveLocalSgd { tolerance: 0.02 };
    hexagram_lab::main(Registry::built_in().with(own))
}
