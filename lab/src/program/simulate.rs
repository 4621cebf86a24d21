//! `simulate`: what a training step takes with each algorithm on a cluster that you do not have, in virtual time. Open
//! this file for the options.
//!
//! `model` has the sizes and times of models, `run` one simulated training, `report` the table and the JSON.

mod model;
mod report;
mod run;

use super::names::information;
use super::say::{Failure, print};
use super::step::Passes;
use super::{Chosen, stepping};
use clap::Parser;
use hexagram::algorithms::{EngineOptions, Registry};
use hexagram::physical::input;
use hexagram::physical::sim::{Cluster, LinkSpec, Rates, Simulation, bandwidth, duration};
use hexagram::{Error, Result};
use model::Model;
use report::{Report, Row};
use run::Scene;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const AFTER_HELP: &str = "\
The algorithms are the real ones, on every rank; buffers have sizes only, arithmetic takes the time that --rates say, \
messages that of the links, and nothing that of this machine: the same arguments and seed give the same figures \
everywhere.

A model file has a line `NAME ELEMENTS BACKWARD_MS` for each parameter, in the order of the forward pass. A forward pass \
takes half of the backward pass.

A link is bandwidth and latency between two ranks of different hosts (--link) or of one (--intra), in each direction: \
10gbit,50us; with jitter=5us messages come up to so much later, with stall=0.001:200ms one of a thousand does by 200 ms.

The time of a step is the mean over all steps after the warm-up, of the rank that took longest; count whole periods of \
algorithms that do not communicate in every step.

Exit code: 0, or 1 if something failed or the output could not be written, 2 for a wrong call, 141 if nobody reads it.

Example: hexagram simulate --algorithm gradient-allreduce,bytegrad --model vgg16 --ranks 128 --hosts 16 --link 10gbit,50us";

/// Rates of a GPU of 2017 (V100: 900 GB/s of memory), of which four fifths are reached; by bytes written or, for codecs,
/// by elements, each of which is read and written once or twice.
const GPU: &str = "\
fill 7e11
copy 3.5e11
reduce 2.4e11
scale 3.5e11
weighted_sum 3.5e11
kernel 7e11
encode * 8e10
decode * 8e10
message 10us
";

/// Simulate a training step with algorithms on a cluster, in virtual time.
#[derive(Parser, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct SimulateOptions {
    /// Algorithms, with options as in 'slowmo(period=12)', separated by commas, or `all`; `list` prints all, and
    /// `help:NAME` the options of one
    #[arg(long, default_value = "gradient-allreduce,bytegrad")]
    pub algorithm: String,
    /// Optimizer that steps with what the algorithm leaves of the gradients [default: the algorithm's own]
    #[arg(long)]
    pub optimizer: Option<String>,
    /// Computation that communication runs beside: the backward pass, or also the next forward pass
    #[arg(long, value_enum, default_value_t = Passes::Backward)]
    pub overlap: Passes,
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", default_value_t = 8)]
    pub ranks: usize,
    /// Number of hosts, on which the ranks are spread evenly
    #[arg(long, value_name = "H", default_value_t = 1)]
    pub hosts: usize,
    /// Let algorithms treat all ranks alike; otherwise those that can communicate within each host first
    #[arg(long)]
    pub flat: bool,
    /// Link between hosts: what each host has to all others together
    #[arg(long, value_name = "LINK", default_value = "10gbit,50us")]
    pub link: LinkSpec,
    /// Link between the ranks of a host: what each rank has to the others together
    #[arg(long, value_name = "LINK", default_value = "300gbit,2us")]
    pub intra: LinkSpec,
    /// Model: vgg16, resnet50, bert-large, gpt2, llama-7b, or a file
    #[arg(long, value_name = "MODEL", default_value = "vgg16")]
    pub model: String,
    /// Time of a forward and a backward pass, in milliseconds [default: the model's own]
    #[arg(long, value_name = "MS")]
    pub compute: Option<f64>,
    /// Rank that computes slower, and by what factor, as in 3:2.5; may be given several times
    #[arg(long, value_name = "RANK:FACTOR")]
    pub straggler: Vec<String>,
    /// File of what arithmetic and messages take a rank [default: those of a V100]
    #[arg(long, value_name = "FILE")]
    pub rates: Option<PathBuf>,
    /// Figures for several values, as in bandwidth=1gbit,10gbit, latency=50us,5ms or ranks=8,16,32; the hosts of other
    /// ranks have as many as those that were asked for
    #[arg(long, value_name = "WHAT=V,V,…")]
    pub sweep: Option<String>,
    /// Steps that are measured
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Steps before those
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub warmup: u32,
    /// Seed of jitter and stalls
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print one JSON object in place of the table
    #[arg(long)]
    pub json: bool,
}

/// A cluster of the sweep.
#[derive(Debug, Clone)]
struct Point {
    ranks: usize,
    hosts: usize,
    link: LinkSpec,
}

/// Runs `simulate`. Returns the exit code.
///
/// # Errors
/// One line that says what is wrong with the options, or what a rank met.
pub fn simulate(registry: &Registry, options: &SimulateOptions) -> Result<u8, Failure> {
    if let Some(text) = information(registry, &options.algorithm, options.optimizer.as_deref()) {
        print(&text?)?;
        return Ok(0);
    }
    let chosen = options.chosen(registry)?;
    let model = Model::named(&options.model, options.compute()?)?;
    let rates = options.rates()?;
    let mut report = Report::new(options, &model);
    for point in options.points()? {
        for chosen in &chosen {
            let row = options.row(chosen, &model, &rates, &point)?;
            report.add(row)?;
        }
    }
    report.finish()?;
    Ok(0)
}

impl SimulateOptions {
    fn chosen(&self, registry: &Registry) -> Result<Vec<Chosen>> {
        let texts = if self.algorithm == "all" { Vec::new() } else { apart(&self.algorithm) };
        Chosen::all(registry, &texts)
    }

    fn compute(&self) -> Result<Option<Duration>> {
        let time = self.compute.map(|millis| Duration::try_from_secs_f64(millis / 1e3));
        time.transpose().map_err(|_| {
            let what = format!("--compute {} is no time", self.compute.unwrap_or_default());
            Error::usage(what, "give milliseconds")
        })
    }

    fn rates(&self) -> Result<Rates> {
        let Some(path) = &self.rates else { return GPU.parse() };
        let text = input::read_text(path, 1 << 20).map_err(|cause| {
            Error::system(format!("read the rates {}", path.display()), cause, "give a file that is there")
        })?;
        text.parse().map_err(|error| in_file(path, error))
    }

    /// Returns the factor by which each rank is slower.
    fn slowness(&self, ranks: usize) -> Result<Vec<f64>> {
        let mut slowness = vec![1.0; ranks];
        for text in &self.straggler {
            let parts = text.split_once(':');
            let parsed = parts.and_then(|(rank, factor)| Some((rank.parse().ok()?, factor.parse().ok()?)));
            match parsed
                .filter(|(rank, factor): &(usize, f64)| *rank < ranks && factor.is_finite() && *factor > 0.0)
            {
                Some((rank, factor)) => slowness[rank] = factor,
                None => {
                    let what = format!("--straggler {text} is none of {ranks} ranks with a factor");
                    return Err(Error::usage(what, "write a rank and a positive factor, as in 3:2.5"));
                }
            }
        }
        Ok(slowness)
    }

    /// Returns the clusters for which there are figures.
    fn points(&self) -> Result<Vec<Point>> {
        let here = Point { ranks: self.ranks, hosts: self.hosts, link: self.link };
        let Some(sweep) = &self.sweep else { return Ok(vec![here]) };
        let wrong = || {
            let what = format!("--sweep {sweep} says nothing that varies");
            Error::usage(what, "write bandwidth=1gbit,10gbit, latency=50us,5ms or ranks=8,16,32")
        };
        let (what, values) = sweep.split_once('=').ok_or_else(wrong)?;
        let point = |value: &str| {
            let mut point = here.clone();
            match what {
                "bandwidth" => point.link.bandwidth = bandwidth(value)?,
                "latency" => point.link.latency = duration(value)?,
                "ranks" => {
                    point.ranks = value.parse().ok()?;
                    let a_host = self.ranks / self.hosts.max(1);
                    point.hosts = (point.ranks / a_host.max(1)).max(1);
                }
                _ => return None,
            }
            Some(point)
        };
        values.split(',').map(|value| point(value.trim()).ok_or_else(wrong)).collect()
    }

    /// Simulates one algorithm on one cluster.
    fn row(&self, chosen: &Chosen, model: &Model, rates: &Rates, point: &Point) -> Result<Row> {
        let Point { ranks, hosts, link } = *point;
        let cluster = Cluster::flat(ranks, hosts, link, self.intra)?;
        let simulation = Simulation { rates: rates.clone(), seed: self.seed, ..Simulation::new(cluster) };
        let slowness = self.slowness(ranks)?;
        let named = chosen.algorithm.optimizers().by_default();
        let optimizer = stepping::named(self.optimizer.as_deref().or(named).unwrap_or("sgd"), None)?;
        let engine = EngineOptions {
            optimizer: Some(Arc::clone(&optimizer)),
            overlap: self.overlap.overlap(),
            hierarchical: !self.flat && hosts > 1 && ranks > hosts,
            ..EngineOptions::default()
        };
        let algorithm = chosen.algorithm.clone();
        let slowness = &*slowness;
        let scene = Scene { model, algorithm, engine, steps: self.steps, warmup: self.warmup, slowness };
        let figures = scene.run(&simulation)?;
        let local_s = self.local(&scene, rates)?;
        Ok(Row { algorithm: chosen.spelling.clone(), ranks, hosts, link, figures, local_s })
    }

    /// Returns the seconds of a step without communication, of the slowest rank.
    fn local(&self, scene: &Scene<'_>, rates: &Rates) -> Result<f64> {
        let alone = Simulation {
            rates: rates.clone(),
            ..Simulation::new(Cluster::flat(1, 1, self.intra, self.intra)?)
        };
        let slowest = [scene.slowness.iter().copied().fold(0.0, f64::max)];
        let algorithm = Registry::built_in().named("gradient-allreduce")?;
        let engine = EngineOptions { hierarchical: false, ..scene.engine.clone() };
        let scene = Scene { model: scene.model, algorithm, engine, steps: 1, warmup: 1, slowness: &slowest };
        Ok(scene.run(&alone)?.step_s)
    }
}

/// Returns the texts between the commas that are in no brackets.
fn apart(text: &str) -> Vec<String> {
    let mut depth = 0usize;
    let mut parts = vec![String::new()];
    for letter in text.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match (letter, parts.last_mut()) {
            (',', _) if depth == 0 => parts.push(String::new()),
            (_, Some(part)) => part.push(letter),
            (_, None) => {}
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// Returns the error of what a file says.
fn in_file(path: &Path, error: Error) -> Error {
    match error {
        Error::Usage { what, remedy } => Error::usage(format!("{}, {what}", path.display()), remedy),
        other => other,
    }
}
