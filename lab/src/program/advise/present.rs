//! Advice on the ranks that are there: `--measure`, which finds out what they and their link can do, and `--check`, which
//! runs what is advised. Open this to see what of a cluster is measured, and how.

use super::advice::Advice;
use super::candidate::Candidate;
use super::{AdviseOptions, report};
use crate::program::ranks::Ranks;
use crate::program::say::{self, Failure, PrintError};
use crate::program::simulate::calibrate::{Exchanged, arithmetic, exchange, loopback};
use crate::program::simulate::job::{Job, Steps};
use crate::program::simulate::model::{Model, matrix};
use crate::program::step::profile::{Layer, Profile};
use crate::program::step::{Measurement, StepOptions};
use crate::program::table::Table;
use hexagram::algorithms::Registry;
use hexagram::physical::sim::{LinkSpec, Rates};
use hexagram::{Communicator, Error, ReduceOp, Result};
use serde_json::{Value, json};
use std::time::Duration;

/// Longest time in which the others wait for what rank 0 simulates.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Steps without communication that are measured.
const LOCAL: Steps = Steps { warmup: 1, counted: 4 };
/// Steps of an algorithm that are measured at least.
const CHECKED: u32 = 8;

/// Runs `advise` as one of a launcher's ranks, or with ranks that it starts. Returns the exit code.
///
/// # Errors
/// As [`advise`](super::advise).
pub(super) fn advise_here(registry: &Registry, options: &AdviseOptions) -> Result<u8, Failure> {
    let job = &options.job;
    let ranks = Ranks {
        program: say::name("advise"),
        ranks: None,
        otherwise: job.ranks,
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
    if let Some(present) = present {
        job.fit(present.rates, present.local_s, &candidates[0].chosen)?;
    }
    let advice = match comm.rank() {
        0 => Some(options.advice(&job, candidates.clone())?),
        _ => None,
    };
    let checks =
        if options.check { check(comm, &options, &job, &candidates, advice.as_ref())? } else { Vec::new() };
    print(comm, &options, advice.as_ref(), &checks)
}

/// Returns the number of hosts of the ranks; ranks of one host count as one each, as what lies between them is what is
/// measured then.
fn hosts(comm: &Communicator) -> usize {
    let hosts = comm.world().hosts().iter().max().map_or(1, |last| last + 1);
    if hosts > 1 { hosts } else { comm.size() }
}

fn print(
    comm: &Communicator,
    options: &AdviseOptions,
    advice: Option<&Advice>,
    checks: &[Checked],
) -> Result<std::result::Result<(), PrintError>> {
    let text = advice.map_or_else(String::new, |advice| match options.json {
        true => {
            let mut object = report::object(options, advice);
            object["check"] = checks.iter().map(Checked::json).collect();
            object.to_string()
        }
        false => {
            let checks: Vec<String> = checks.iter().map(Checked::told).collect();
            [vec![report::table(options, advice)], checks].concat().join("\n")
        }
    });
    let mut table = Table::new(comm);
    table.line(&text)?;
    Ok(table.finish())
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
    /// Measures the link, arithmetic on all ranks at once, and steps without communication. A collective call.
    fn measured(comm: &Communicator, options: &AdviseOptions) -> Result<Self> {
        if comm.size() == 1 {
            return Err(Error::usage(
                "one rank has no link that could be measured",
                "give --ranks 2 or more",
            ));
        }
        let here = if comm.rank() == 0 { loopback()?.round_s } else { 0.0 };
        let Exchanged { round_s, bytes_s } = between(comm)?;
        let mut told = [here, round_s, bytes_s];
        comm.blocking().broadcast(&mut told, 0)?;
        let [here, round_s, bytes_s] = told;
        let mut rates = arithmetic()?;
        slowest(comm, &mut rates)?;
        rates.message = Duration::from_secs_f64(here / 4.0);
        let model = options.job.job()?.model;
        let step = step_options(options, "none".to_owned(), LOCAL);
        let local = Measurement::of(&step, None, profile(&model))?.run(comm)?;
        let latency = Duration::from_nanos((((round_s - here) / 2.0).max(0.0) * 1e7).round() as u64 * 100);
        // To a kilobyte a second.
        let link = LinkSpec::new((bytes_s / 1e3).round().max(1.0) * 1e3, latency);
        Ok(Present { link, rates, local_s: local.step_s })
    }
}

/// Returns the times of messages between rank 0 and the first rank of another host, or rank 1 on one host; elsewhere nothing.
fn between(comm: &Communicator) -> Result<Exchanged> {
    let hosts = comm.world().hosts();
    let other = hosts.iter().position(|host| *host != hosts[0]).unwrap_or(1);
    let found = match comm.rank() {
        0 => exchange(comm, other)?,
        rank if rank == other => exchange(comm, 0)?,
        _ => Exchanged { round_s: 0.0, bytes_s: 0.0 },
    };
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

    fn told(&self) -> String {
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

/// Runs the two algorithms that take least by the advice, which rank 0 has. A collective call.
fn check(
    comm: &Communicator,
    options: &AdviseOptions,
    job: &Job<'_>,
    candidates: &[Candidate],
    advice: Option<&Advice>,
) -> Result<Vec<Checked>> {
    let fastest = advice.map_or_else(Vec::new, Advice::by_time);
    let number = |place: usize| {
        let named =
            |one: &Candidate| fastest.get(place).is_some_and(|row| row.algorithm == one.chosen.spelling);
        candidates.iter().position(named).unwrap_or(0) as i64
    };
    let mut numbers = [number(0), number(1)];
    comm.blocking().broadcast(&mut numbers, 0)?;
    let mut checks = Vec::new();
    for (place, number) in numbers.into_iter().enumerate() {
        let Some(candidate) = candidates.get(number as usize) else { continue };
        let Steps { warmup, counted } = candidate.steps;
        let steps = Steps { warmup: warmup + counted, counted: counted * CHECKED.div_ceil(counted) };
        let algorithm = candidate.chosen.spelling.clone();
        let step = step_options(options, algorithm.clone(), steps);
        let mut measurement =
            Measurement::of(&step, Some(job.simulated(&candidate.chosen)), profile(&job.model))?;
        measurement.hierarchical = options.job.is_hierarchical(&options.job.point()?);
        let took_s = measurement.run(comm)?.step_s;
        let advised_s = fastest.get(place).map_or(f64::NAN, |row| row.figures.step_s);
        checks.push(Checked { algorithm, advised_s, took_s });
    }
    Ok(checks)
}

fn step_options(options: &AdviseOptions, algorithm: String, steps: Steps) -> StepOptions {
    StepOptions {
        algorithm,
        optimizer: options.job.optimizer.clone(),
        period: None,
        overlap: options.job.overlap,
        ranks: None,
        transport: options.transport,
        profile: None,
        steps: steps.counted,
        warmup: steps.warmup,
    }
}

/// Returns the model as `step` computes it.
fn profile(model: &Model) -> Profile {
    let layer = |layer: &crate::program::simulate::model::Layer| Layer {
        name: layer.name.clone(),
        shapes: vec![matrix(layer.elements)],
        forward: layer.forward,
        backward: layer.backward,
    };
    Profile { layers: model.layers.iter().map(layer).collect() }
}
