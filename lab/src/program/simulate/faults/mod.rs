//! `simulate --faults`: small trainings on small clusters, with faults drawn from a seed or read from a file.
//!
//! `plan` draws the faults and has the ranks that they excuse, `file` reads faults from a file, `scene` trains with
//! them, `verdict` judges how the ranks ended.

mod file;
mod plan;
mod scene;
#[cfg(test)]
mod tests;
mod verdict;

use super::job::SimulatedJobOptions;
use super::options::SimulateOptions;
use crate::program::ChosenAlgorithm;
use crate::program::arguments::ALL;
use crate::program::console::{self, ProgramError, print};
use clap::Args;
use hexagram::algorithms::Registry;
use hexagram::physical::sim::Flaw;
use hexagram::{Error, Result};
use plan::FaultPlan;
use scene::{FaultScene, FaultStage};
use std::path::Path;

/// Number of seeds between two reports of progress on standard error.
const OFTEN: u64 = 1000;

/// Default algorithm of a training with the faults of a file.
const OF_FILES: &str = "gradient-allreduce";

/// Options without a meaning here: the search has its own small clusters, models and steps.
const FOREIGN: [&str; 22] = [
    "train",
    "sweep",
    "json",
    "out",
    "trace",
    "calibrate",
    "steps",
    "warmup",
    "model",
    "compute",
    "straggler",
    "compute_jitter",
    "compute_drift",
    "rates",
    "link",
    "intra",
    "shape",
    "topology",
    "optimizer",
    "overlap",
    "from_start",
    "all_steps",
];

/// Options of a search for faults that end wrongly.
#[derive(Args, Debug, Clone)]
pub struct FaultOptions {
    /// Try N seeds, from --seed on. Each draws a synchronous algorithm, a small cluster and faults of its ranks, hosts and
    /// links, and trains with real numbers in virtual time. The search ends at the first seed whose training hangs, names a
    /// healthy rank in an error, or ends with different replicas. With 1, all events of that seed are printed. Or a file of
    /// faults, one per line as in `3s rank 2 dies`, for the algorithm (default: gradient-allreduce), ranks and hosts of the
    /// other options
    #[arg(long, value_name = "N|FILE", conflicts_with_all = FOREIGN)]
    pub faults: Option<String>,
}

/// Counts of the seeds that were tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct FaultCounts {
    seeds: u64,
    faults: usize,
    /// Trainings in which a rank ended with an error.
    ended: u64,
    events: u64,
}

/// Runs `simulate --faults`. Returns the exit code.
///
/// # Errors
/// The first invalid option, in one line.
pub(super) fn faults(
    registry: &Registry,
    options: &SimulateOptions,
    asked: &str,
) -> Result<u8, ProgramError> {
    let stage = |unless_named: &str| {
        FaultStage::new(synchronous(registry, options.algorithm.as_deref().unwrap_or(unless_named))?)
    };
    match asked.parse::<u64>() {
        Ok(0) => Err(Error::usage("--faults 0 tries no seed", "give a number of seeds, or a file").into()),
        Ok(count) => {
            options.job.check_drawn()?;
            let stage = stage(ALL)?;
            let first = options.job.seed;
            if count == 1 {
                replay(&stage, &FaultPlan::drawn(first, &stage))
            } else {
                search(&stage, first, count)
            }
        }
        Err(_) => {
            let stage = stage(OF_FILES)?;
            replay(&stage, &of_file(Path::new(asked), &options.job, &stage)?)
        }
    }
}

/// Returns the algorithms of a list; of all, the synchronous ones.
fn synchronous(registry: &Registry, list: &str) -> Result<Vec<ChosenAlgorithm>> {
    let mut chosen = ChosenAlgorithm::listed(registry, list)?;
    let is_synchronous = |one: &ChosenAlgorithm| one.algorithm.trigram().synchronous;
    if list == ALL {
        chosen.retain(is_synchronous);
    }
    let Some(other) = chosen.iter().find(|one| !is_synchronous(one)) else { return Ok(chosen) };
    let what = format!("--faults needs synchronous algorithms, and {} is asynchronous", other.spelling);
    Err(Error::usage(what, "choose others, or `all` for all synchronous ones"))
}

/// Returns the plan of a file of faults.
fn of_file(path: &Path, job: &SimulatedJobOptions, stage: &FaultStage) -> Result<FaultPlan> {
    if stage.algorithms.len() > 1 {
        let what = format!("--faults FILE needs one algorithm, and {} are chosen", stage.algorithms.len());
        return Err(Error::usage(what, "name one with --algorithm"));
    }
    let point = job.point()?;
    job.check(&point)?;
    let faults = file::read(path, point.ranks, point.hosts)?;
    Ok(FaultPlan::of(faults, &point, job.is_hierarchical(&point), job.seed))
}

/// Tries seeds until one ends wrongly.
fn search(stage: &FaultStage, first: u64, count: u64) -> Result<u8, ProgramError> {
    let mut tally = FaultCounts::default();
    for seed in first..first.saturating_add(count) {
        let plan = FaultPlan::drawn(seed, stage);
        let found = attempt(stage, &plan, None, &mut tally)?;
        if !found.is_empty() {
            let again = format!("to repeat it with all events: {}", plan.again(stage));
            print(&format!("{}{}{again}", plan.describe(stage), found.concat()))?;
            return Ok(1);
        }
        if tally.seeds.is_multiple_of(OFTEN) {
            console::line(&console::name("simulate"), format!("{} seeds of {count}", tally.seeds));
        }
    }
    let FaultCounts { seeds, faults, ended, events } = tally;
    print(&format!(
        "{seeds} seeds from {first}: {faults} faults and {events} events; {ended} trainings ended with an error. No rank hung, \
         no error named a healthy rank, and no replica differed."
    ))?;
    Ok(0)
}

/// Plays one plan, and prints all of it.
fn replay(stage: &FaultStage, plan: &FaultPlan) -> Result<u8, ProgramError> {
    let scene = FaultScene { stage, plan, flaw: None, is_logged: true };
    let play = scene.play()?;
    let found = verdict::verdict(plan, &play, stage.reference(plan)?);
    let mut text = plan.describe(stage);
    text.extend(play.log.iter().map(|line| format!("{line}\n")));
    text.extend(play.describe());
    text.extend(plan.unplayed(&play).map(|fault| format!("`{fault}` did not happen: all ranks had ended\n")));
    text.push_str(&found.concat());
    print(text.trim_end())?;
    Ok(u8::from(!found.is_empty()))
}

/// Plays one plan; returns the defect in how it ended, if any.
fn attempt(
    stage: &FaultStage,
    plan: &FaultPlan,
    flaw: Option<Flaw>,
    tally: &mut FaultCounts,
) -> Result<Vec<String>> {
    let play = FaultScene { stage, plan, flaw, is_logged: false }.play()?;
    tally.seeds += 1;
    tally.faults += plan.faults.len();
    tally.events += play.events;
    tally.ended += u64::from(play.has_error());
    Ok(verdict::verdict(plan, &play, stage.reference(plan)?))
}
