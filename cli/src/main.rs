//! The program `hexagram`, as cargo installs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    hexagram_cli::run(std::env::args_os())
}
