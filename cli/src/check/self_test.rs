//! Self-test: two ranks, as processes, add numbers over each transport.

use super::libraries::program;
use super::report::CheckReport;
use crate::console;
use crate::transports::{built_in, mpi};
use hexagram::launch::{Job, Outcome, Output, as_rank, forget_rank, this_program};
use hexagram::logical::runtime::{self, Instant};
use hexagram::{Communicator, Error, JoinOptions, ReduceOp, Result, TransportKind, World};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

const RANKS: usize = 2;
const SUBCOMMAND: &str = "check";
/// Elements: enough for several frames of any transport.
const LENGTH: usize = 1 << 20;
/// Deadline of joining, and of every operation.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// Starts the ranks over each transport between processes.
pub(super) fn check(report: &mut CheckReport) {
    report.title("self-test: two processes add numbers");
    let by_mpirun = mpi();
    let ours = |kind: &TransportKind| *kind != TransportKind::Thread && Some(*kind) != by_mpirun;
    for transport in built_in().into_iter().filter(ours) {
        let start = runtime::now();
        let outcome = ranks(transport).and_then(|job| job.run());
        conclude(
            report,
            transport,
            start,
            outcome.map_err(|error| error.to_string()).and_then(|outcome| {
                if outcome == Outcome::Success { Ok(()) } else { Err(outcome.to_string()) }
            }),
        );
    }
    if let (Some(transport), Some(mpirun)) = (by_mpirun, program("mpirun")) {
        let start = runtime::now();
        conclude(report, transport, start, under(&mpirun, transport));
    }
}

fn conclude(report: &mut CheckReport, transport: TransportKind, start: Instant, outcome: Result<(), String>) {
    match outcome {
        Ok(()) => report.good(&format!("{transport}: right, in {:.0?}", start.elapsed())),
        Err(why) => report.bad(&format!("{transport}: {why}; see its lines on stderr for cause and remedy")),
    }
}

/// Returns the self-test job: this program as two ranks.
fn ranks(transport: TransportKind) -> Result<Job> {
    let this = Job::of_this_program(RANKS)?;
    Ok(Job { arguments: arguments(transport), output: Output::Prefixed, ..this })
}

/// Returns the arguments of this process up to its subcommand, followed by those of a rank. An interpreter may
/// precede the program.
fn arguments(transport: TransportKind) -> Vec<OsString> {
    let before = std::env::args_os().skip(1).take_while(|argument| argument != SUBCOMMAND);
    let rank = [SUBCOMMAND.into(), "--self-test".into(), transport.to_string().into()];
    before.chain(rank).collect()
}

/// Runs the same two ranks under mpirun.
fn under(mpirun: &Path, transport: TransportKind) -> Result<(), String> {
    let this = this_program().map_err(|error| error.to_string())?;
    let mut command = Command::new(mpirun);
    command.args(["-n", "2", "--oversubscribe"]).arg(this).args(arguments(transport));
    forget_rank(&mut command);
    let status = command.status().map_err(|cause| format!("mpirun cannot be started: {cause}"))?;
    if status.success() { Ok(()) } else { Err(format!("mpirun ended with {status}")) }
}

/// Runs one rank of the self-test.
pub(super) fn rank(transport: TransportKind) -> ExitCode {
    let options = JoinOptions { transport, deadline: DEADLINE, ..JoinOptions::default() };
    match World::join(&options).and_then(|world| as_rank(world, |world| add(&world))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => console::failure("hexagram check", error),
    }
}

fn add(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    comm.set_deadline(DEADLINE);
    let own = |rank: usize, index: usize| (rank * 1000 + index % 251) as f32;
    let mut numbers: Vec<f32> = (0..LENGTH).map(|index| own(comm.rank(), index)).collect();
    comm.blocking().all_reduce(&mut numbers, ReduceOp::Sum)?;
    let expected = |index| (0..comm.size()).map(|rank| own(rank, index)).sum::<f32>();
    match numbers.iter().enumerate().find(|(index, number)| **number != expected(*index)) {
        None => Ok(()),
        Some((index, number)) => {
            let what = format!("element {index} of a sum is {number} and not {}", expected(index));
            Err(Error::setup(
                what,
                "do not use this transport on this machine, and report this with the whole output",
            ))
        }
    }
}
