//! The command line: which program runs, with which options.

use super::console::{self, ProgramError};
use super::{
    AdviseOptions, CompareOptions, SimulateOptions, StepOptions, SuiteOptions, TrainOptions, advise, compare,
    information, prepare, simulate, step, suite, train,
};
use clap::{Parser, Subcommand};
use hexagram::algorithms::Registry;
use hexagram::physical::health::SILENCE_HELP;
use std::process::ExitCode;

/// Trains, compares and measures the algorithms of this program.
#[derive(Parser)]
#[command(arg_required_else_help = true, after_help = format!("{AFTER_HELP}\n\n{SILENCE_HELP}"))]
struct LabProgram {
    #[command(subcommand)]
    command: LabCommand,
}

const AFTER_HELP: &str = "\
`list` prints the algorithms, and `help:NAME` the options of an algorithm, a codec or a graph; `train --optimizer list` and \
`train --optimizer help:NAME` do the same for optimizers.

Exit code: 0 on success; 1 on a failure, or if the output cannot be written; 2 for invalid options; 141 if the reader \
closed the output.";

#[derive(Subcommand)]
enum LabCommand {
    Train(TrainOptions),
    Compare(CompareOptions),
    Suite(SuiteOptions),
    Step(StepOptions),
    Simulate(Box<SimulateOptions>),
    Advise(Box<AdviseOptions>),
}

/// Runs the program that the command line selects, with the algorithms of a registry; returns the exit code.
pub fn main(registry: Registry) -> ExitCode {
    if let Err(code) = prepare("") {
        return code;
    }
    let asked = std::env::args().nth(1).and_then(|word| information(&registry, &word, None));
    if let Some(text) = asked {
        return console::ended(&console::name(""), printed(text));
    }
    let program = match LabProgram::try_parse() {
        Ok(program) => program,
        Err(shown) => return console::instead(&console::name(""), &shown),
    };
    match program.command {
        LabCommand::Train(options) => console::ended(&console::name("train"), train(&registry, &options)),
        LabCommand::Compare(options) => {
            console::ended(&console::name("compare"), compare(&registry, &options))
        }
        LabCommand::Suite(options) => {
            console::ended(&console::name("suite"), suite(&registry, &options).map(|()| 0))
        }
        LabCommand::Step(options) => console::ended(&console::name("step"), step(&registry, &options)),
        LabCommand::Simulate(options) => {
            console::ended(&console::name("simulate"), simulate(&registry, &options))
        }
        LabCommand::Advise(options) => console::ended(&console::name("advise"), advise(&registry, &options)),
    }
}

fn printed(text: hexagram::Result<String>) -> Result<u8, ProgramError> {
    console::print(&text?)?;
    Ok(0)
}
