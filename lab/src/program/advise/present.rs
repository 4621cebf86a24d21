//! Advice on real ranks: `--measure` measures the ranks and their link, `--check` runs the recommended algorithms.

use super::advice::Advice;
use super::candidate::Candidate;
use super::{AdviseOptions, report};
use crate::program::console::{self, PrintError, ProgramError};
use crate::program::ranks::ProgramRanks;
use crate::program::simulate::calibrate::{MessageTimes, arithmetic, exchange, loopback};
use crate::program::simulate::job::{LayerModel, SimulatedJob, StepCounts, matrix};
use crate::program::step::profile::{Profile, ProfileLayer};
use crate::program::step::{Measurement, StepOptions};
use crate::program::table::Table;
use hexagram::algorithms::Registry;
use hexagram::physical::sim::{LinkSpec, Rates};
use hexagram::{Communicator, Error, JoinOptions, ReduceOp, Result};
use serde_json::{Value, json};
use std::time::Duration;

/// Longest time for which the others wait for the simulation of rank 0.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Steps without communication that are measured.
const LOCAL: StepCounts = StepCounts { warmup: 2, counted: 16 };
/// Least number of measured steps of an algorithm, least number of seconds, and a sufficient number of steps.
const CHECKED: u32 = 8;
const LEAST_S: f64 = 1.0;
const MOST: f64 = 1000.0;

/// Runs `advise` as one of a launcher's ranks, or with ranks that it starts. Returns the exit code.
///
/// # Errors
/// As [`advise`](super::advise).
pub(super) fn advise_here(registry: &Registry, options: &AdviseOptions) -> Result<u8, ProgramError> {
    let job = &options.job;
    let ranks = ProgramRanks {
        program: console::name("advise"),
        ranks: None,
        otherwise: job.ranks,
        deadline: JoinOptions::default().deadline,
        transport: options.transport,
        configuration: format!("advise: {} on {}, {}", options.algorithm, job.model, job.link),
    };
    let ran = ranks.run(|world| on_rank(registry, options, &Communicator::open(world, 0)?))?;
    Ok(ran.code()?)
}

/// Runs all of it as one rank; rank 0 prints.
fn on_rank(
    registry: &Registry,
    options: &AdviseOptions,
    comm: &Communicator,
) -> Result<std::result::Result<(), PrintError>> {
    let comm = &comm.with_deadline(PATIENCE);
    let mut options = options.clone();
    options.job.ranks = comm.size();
    options.job.hosts = hosts(comm);
    options.check_cluster()?;
    let mut candidates = vec![Candidate::reference(registry)?];
    candidates.extend(Candidate::all(registry, &options.algorithm, options.job.optimizer.as_deref())?);
    let present = if options.measure { Some(Present::measured(comm, &options)?) } else { None };
    if let Some(present) = &present {
        options.job.link = present.link;
    }
    let mut job = options.job.job()?;
    let model = job.model.clone();
    if let Some(present) = &present {
        job.fit(present.rates.clone(), present.local_s, &candidates[0].chosen)?;
    }
    let advice = match comm.rank() {
        0 => Some(options.advice(&job, candidates.clone())?),
        _ => None,
    };
    let real = MeasuredAlgorithms { options: &options, job: &job, model: &model };
    let checks = check(comm, &options, &real, &candidates, advice.as_ref())?;
    let advice = advice.as_ref().map(|advice| match options.json {
        true => object(&options, advice, present.as_ref(), &checks).to_string(),
        false => {
            let checks: Vec<String> = checks.iter().map(Checked::describe).collect();
            [vec![report::table(&options, advice)], checks].concat().join("\n")
        }
    });
    let mut table = Table::new(comm);
    table.line(&advice.unwrap_or_default())?;
    Ok(table.finish())
}

/// Returns the number of hosts of the ranks. If all ranks share one host, each rank counts as a host, since the measurement
/// then covers the links between the ranks.
fn hosts(comm: &Communicator) -> usize {
    let hosts = comm.world().hosts().iter().max().map_or(1, |last| last + 1);
    if hosts > 1 { hosts } else { comm.size() }
}

/// Returns all of it as one object.
fn object(options: &AdviseOptions, advice: &Advice, present: Option<&Present>, checks: &[Checked]) -> Value {
    let mut object = report::object(options, advice);
    if let Some(Present { rates, local_s, .. }) = present {
        object["measured"] = json!({ "local_s": local_s, "rates": rates.to_string() });
    }
    object["check"] = checks.iter().map(Checked::json).collect();
    object
}

/// Measurements of the present ranks.
struct Present {
    link: LinkSpec,
    /// Rates of the slowest of them.
    rates: Rates,
    /// Seconds of a step without communication, of the slowest.
    local_s: f64,
}

impl Present {
    /// Measures the link, arithmetic on all ranks together, and steps without communication. A collective call.
    fn measured(comm: &Communicator, options: &AdviseOptions) -> Result<Self> {
        if comm.size() == 1 {
            return Err(Error::usage("a single rank has no link to measure", "use --ranks 2 or more"));
        }
        let message_s = if comm.rank() == 0 { loopback()?.message_s } else { 0.0 };
        let MessageTimes { round_s, bytes_s, .. } = between(comm)?;
        let mut told = [message_s, round_s, bytes_s];
        comm.blocking().broadcast(&mut told, 0)?;
        let [message_s, round_s, bytes_s] = told;
        let mut rates = arithmetic()?;
        slowest(comm, &mut rates)?;
        rates.message = Duration::from_secs_f64(message_s);
        let model = options.job.job()?.model;
        let step = step_options(options, "none".to_owned(), LOCAL);
        let local = Measurement::of(&step, None, profile(&model))?.run(comm)?;
        // A message is sent and received.
        let latency_s = (round_s / 2.0 - 2.0 * message_s).max(0.0);
        let latency = Duration::from_nanos((latency_s * 1e7).round() as u64 * 100);
        // Rounded to a kilobyte per second.
        let link = LinkSpec::new((bytes_s / 1e3).round().max(1.0) * 1e3, latency);
        Ok(Present { link, rates, local_s: local.step_s })
    }
}

/// Returns the times of messages between the first ranks of all hosts, or between all ranks of a single host; zeros on ranks
/// that take no part. A collective call.
fn between(comm: &Communicator) -> Result<MessageTimes> {
    let hosts = comm.world().hosts();
    let is_first = hosts.iter().position(|host| *host == hosts[comm.rank()]) == Some(comm.rank());
    let is_one = hosts.iter().all(|host| *host == hosts[0]);
    let firsts = comm.block_on(comm.split((is_first || is_one).then_some(0), 0))?;
    let nothing = MessageTimes { round_s: 0.0, message_s: 0.0, bytes_s: 0.0 };
    let found = firsts.map_or(Ok(nothing), |firsts| exchange(&firsts))?;
    comm.block_on(comm.barrier())?;
    Ok(found)
}

/// Takes the lowest of each rate over the ranks.
fn slowest(comm: &Communicator, rates: &mut Rates) -> Result<()> {
    let mut all: Vec<&mut f64> = vec![
        &mut rates.fill,
        &mut rates.copy,
        &mut rates.reduce,
        &mut rates.scale,
        &mut rates.weighted_sum,
        &mut rates.kernel,
        &mut rates.product,
    ];
    all.extend(rates.encode.values_mut().chain(rates.decode.values_mut()));
    let mut values: Vec<f64> = all.iter().map(|rate| **rate).collect();
    comm.blocking().all_reduce(&mut values, ReduceOp::Min)?;
    all.into_iter().zip(values).for_each(|(rate, least)| *rate = least);
    Ok(())
}

/// Algorithm that was run for real.
pub(super) struct Checked {
    algorithm: String,
    advised_s: f64,
    took_s: f64,
}

impl Checked {
    fn error(&self) -> f64 {
        self.advised_s / self.took_s - 1.0
    }

    fn describe(&self) -> String {
        format!(
            "Checked: `{}` takes {:.1} ms a step here, and {:.1} ms by this advice, {:+.1} %.",
            self.algorithm,
            1e3 * self.took_s,
            1e3 * self.advised_s,
            100.0 * self.error()
        )
    }

    fn json(&self) -> Value {
        json!({
            "algorithm": self.algorithm,
            "advised_s": self.advised_s,
            "took_s": self.took_s,
            "error_fraction": self.error(),
        })
    }
}

/// Runs the fastest algorithms by the advice, in the number that the options request. Rank 0 has the advice. A collective call.
fn check(
    comm: &Communicator,
    options: &AdviseOptions,
    real: &MeasuredAlgorithms<'_>,
    candidates: &[Candidate],
    advice: Option<&Advice>,
) -> Result<Vec<Checked>> {
    let rows = advice.map_or_else(Vec::new, Advice::by_time);
    let advised = |one: &Candidate| {
        let row = rows.iter().find(|row| row.algorithm == one.chosen.spelling);
        row.map_or(f64::INFINITY, |row| row.figures.step_s)
    };
    let mut times: Vec<f64> = candidates.iter().map(advised).collect();
    comm.blocking().broadcast(&mut times, 0)?;
    let mut checks: Vec<(&Candidate, f64)> = candidates.iter().zip(times).collect();
    checks.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    checks.truncate(options.check.unwrap_or(0));
    let checked = |(candidate, advised_s): (&Candidate, f64)| {
        let took_s = real.step_s(comm, candidate, advised_s)?;
        Ok(Checked { algorithm: candidate.chosen.spelling.clone(), advised_s, took_s })
    };
    checks.into_iter().map(checked).collect()
}

/// Algorithms that are run for real.
struct MeasuredAlgorithms<'a> {
    options: &'a AdviseOptions,
    job: &'a SimulatedJob<'a>,
    /// Model whose passes are those that were asked for: the simulated ones are fitted.
    model: &'a LayerModel,
}

impl MeasuredAlgorithms<'_> {
    /// Returns the seconds of a step of an algorithm, measured for at least a second. `about_s` is an estimate of
    /// the result, and sets the number of steps.
    fn step_s(&self, comm: &Communicator, candidate: &Candidate, about_s: f64) -> Result<f64> {
        let StepCounts { warmup, counted } = candidate.steps;
        let least = CHECKED.max((LEAST_S / about_s).min(MOST) as u32);
        let steps = StepCounts { warmup: warmup + counted, counted: counted * least.div_ceil(counted) };
        let step = step_options(self.options, candidate.chosen.spelling.clone(), steps);
        let chosen = self.job.simulated(&candidate.chosen);
        let mut measurement = Measurement::of(&step, Some(chosen), profile(self.model))?;
        measurement.hierarchical = self.options.job.is_hierarchical(&self.options.job.point()?);
        Ok(measurement.run(comm)?.step_s)
    }
}

fn step_options(options: &AdviseOptions, algorithm: String, steps: StepCounts) -> StepOptions {
    StepOptions {
        algorithm,
        optimizer: options.job.optimizer.clone(),
        overlap: options.job.overlap,
        ranks: None,
        transport: options.transport,
        profile: None,
        accelerator: options.accelerator,
        steps: Some(steps.counted),
        warmup: steps.warmup,
    }
}

/// Returns the model in the form that `step` computes.
fn profile(model: &LayerModel) -> Profile {
    let layer = |layer: &crate::program::simulate::job::ModelLayer| ProfileLayer {
        name: layer.name.clone(),
        shapes: vec![matrix(layer.elements)],
        forward: layer.forward,
        backward: layer.backward,
    };
    Profile { layers: model.layers.iter().map(layer).collect() }
}
