//! One rank, or all of them: finds out whether a launcher has started this process, and starts the ranks if none has.

use crate::Failure;
use crate::metrics::Metrics;
use crate::options::Checked;
use crate::progress::note;
use hexagram::launch::{Job, Outcome, as_rank, as_threads};
use hexagram::physical::bootstrap::variable;
use hexagram::physical::stdout::READER_GONE;
use hexagram::{Error, JoinOptions, Launcher, Placement, TransportKind, World};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells the ranks when their launcher began, in seconds since 1970.
const STARTED: &str = "HEXAGRAM_EXAMPLE_STARTED";
/// Variable with the number of threads that candle may use; read once, when it first computes.
const THREADS: &str = "RAYON_NUM_THREADS";

/// Runs `rank` as this process's rank, or starts all ranks and waits for them.
///
/// What a rank returns is what its process exits with: a training that has come to its end may exit with another code
/// than 0 without being blamed for the end of others.
///
/// # Errors
/// What `rank` returns, or what kept the ranks from starting.
pub fn start(
    checked: &Checked,
    rank: impl Fn(World) -> Result<ExitCode, Failure> + Sync,
) -> Result<ExitCode, Failure> {
    let options = &checked.options;
    let transport = checked.transport;
    match Placement::from_env()? {
        Some(placement) => {
            checked.check_share(placement.size)?;
            share_cores(&placement)?;
            if options.ranks.is_some_and(|ranks| ranks != placement.size) {
                note(&format!("train: --ranks is ignored: a launcher has started {} ranks", placement.size));
            }
            let join = JoinOptions { transport, deadline: options.join_deadline(), ..JoinOptions::default() };
            Ok(one(World::join_as(&placement, &join)?, &rank)?)
        }
        None => {
            checked.check_for(options.ranks())?;
            if let Some(out) = &options.out {
                // Here, so that a folder that cannot be is one message and not one a rank.
                Metrics::prepare(out)?;
            }
            if transport == TransportKind::Thread {
                threads(options.ranks(), &rank)
            } else {
                processes(options.ranks())
            }
        }
    }
}

/// Runs one rank; if it fails, says which one it was.
fn one(world: World, rank: &impl Fn(World) -> Result<ExitCode, Failure>) -> Result<ExitCode, String> {
    let number = world.rank();
    as_rank(world, rank).map_err(|error| format!("rank {number}: {error}"))
}

fn threads(
    ranks: usize,
    rank: &(impl Fn(World) -> Result<ExitCode, Failure> + Sync),
) -> Result<ExitCode, Failure> {
    let failed = |error: String| {
        note(&format!("train: {error}"));
        ExitCode::FAILURE
    };
    let codes = as_threads(ranks, |world| one(world, rank).unwrap_or_else(failed))?;
    Ok(codes.into_iter().find(|code| *code != ExitCode::SUCCESS).unwrap_or_default())
}

/// Starts this program once per rank.
fn processes(ranks: usize) -> Result<ExitCode, Failure> {
    let started = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64().to_string();
    let job = Job { environment: vec![(STARTED.into(), started.into())], ..Job::of_this_program(ranks)? };
    let outcome = job.run()?;
    let code = u8::try_from(outcome.exit_code()).unwrap_or(1);
    if !matches!(outcome, Outcome::Success) && code != READER_GONE {
        note(&format!("train: {outcome}"));
    }
    Ok(ExitCode::from(code))
}

/// Shares the cores out under a launcher that is not our own, before candle has read the variable, by starting this
/// program over with it set. Our own launcher does it itself.
fn share_cores(placement: &Placement) -> Result<(), Failure> {
    if placement.launcher == Launcher::Hexagram || variable(THREADS).is_some() {
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / placement.local_size).max(1);
    let program = std::env::current_exe()?;
    let failed =
        Command::new(program).args(std::env::args_os().skip(1)).env(THREADS, threads.to_string()).exec();
    Err(Error::system("start over with a share of the cores", failed, "set RAYON_NUM_THREADS yourself")
        .into())
}

/// Returns the time since the launch: that of the process which started the ranks, or else of this one.
pub fn since_launch(here: SystemTime) -> Duration {
    let launch = variable(STARTED).and_then(|seconds| since_1970(&seconds)).unwrap_or(here);
    launch.elapsed().unwrap_or_default()
}

/// Returns the time so many seconds after the beginning of 1970; `None` if no clock can show it.
fn since_1970(seconds: &str) -> Option<SystemTime> {
    let since = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_time_of_a_launch_is_none() {
        assert_eq!(since_1970("1.5"), Some(UNIX_EPOCH + Duration::from_millis(1500)));
        for other in ["", "yesterday", "-1", "nan", "inf", "1e19", "1e300"] {
            assert_eq!(since_1970(other), None, "{other}");
        }
    }
}
