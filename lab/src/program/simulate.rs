//! `simulate`: the cost of a training step with each algorithm on a cluster that you do not have, in virtual time.
//!
//! `job` is the simulated job of the options, `sweep` the values of a sweep, `model` the sizes and times of models,
//! `trace` those of a real run, `calibrate` the rates of this machine. `run` is one simulated training, `repeats`
//! detects that its remaining steps repeat, `pace` is the speed of ranks. `report` has the table and the JSON;
//! `pictures` and `out` write a folder. `train` implements `--train`, a training with real numbers, and `faults`
//! implements `--faults`.

pub(super) mod calibrate;
mod faults;
pub(super) mod job;
pub(super) mod model;
mod out;
mod pace;
mod pictures;
mod repeats;
pub(super) mod report;
mod run;
mod sweep;
mod trace;
mod train;

use super::Chosen;
use super::names::information;
use super::periods::whole_periods;
use super::say::{Failure, print};
use clap::Parser;
use faults::FaultOptions;
use hexagram::algorithms::Registry;
use hexagram::algorithms::trace::check_writable;
use hexagram::{Error, Result};
pub use job::JobOptions;
use job::{Point, Steps};
use report::{HEADING, Report, about};
use std::path::PathBuf;
use sweep::{Sweep, Swept};
use train::TrainingOptions;

const AFTER_HELP: &str = "\
Every rank runs the real algorithm, on buffers that have sizes only. Arithmetic takes the time given by --rates, \
messages that of the links. The speed of this machine has no effect: the same arguments and seed give the \
same figures everywhere.

With --train a small model is trained with real numbers, to the same bits as on real ranks of this machine, unless the \
algorithm is asynchronous. The mathematics library of a different machine may round exponentials and logarithms \
differently. Defaults: the learning rates of docs/which-algorithm.md (--lr), and 10 ms for the passes of a step \
(--compute).

A model file has a line `NAME ELEMENTS BACKWARD_MS` for each parameter, in the order of the forward pass. A forward pass \
takes half of the backward pass. The file may also be the trace of a real run, written by `train --trace`: its buckets are \
the layers.

A link is the bandwidth and latency between two ranks of different hosts (--link) or of one (--intra), in each direction: \
10gbit,50us. jitter=5us delays each message by up to 5 µs; stall=0.001:200ms delays one of a thousand by 200 ms.

Ranks compute for the time of the model, times the factors of --straggler, --compute-jitter and --compute-drift, whose random \
numbers follow from --seed.

A cluster is flat, on one switch without congestion, or has a different --shape: racks whose uplink is the bandwidth of \
their hosts divided by an oversubscription, a fat tree of switches with a number of ports, or sites in a ring. A --topology \
file has such a line, and others: `hosts 6 ranks=4`, `hosts 2 ranks=2 link=1gbit,80us intra=100gbit,5us`, `switch NAME`, and \
`link host3 rack0 10gbit,25us,stall=0.01:200ms` for single links; docs/simulation.md describes the format.

Algorithms with a warm-up of their own are simulated without it, except with --from-start; the table shows the options \
that were simulated.

Of the bytes that a rank sends, only those to other hosts use the network.

The time of a step is the mean over all steps after the warm-up, of the slowest rank. For algorithms that do not \
communicate in every step, set --steps to whole periods.

Exit code: 0 on success; 1 on a failure, or if the output cannot be written; 2 for invalid options; 141 if the reader \
closed the output.

Example: hexagram simulate --algorithm gradient-allreduce,bytegrad --model vgg16 --ranks 128 --hosts 16 --link 10gbit,50us";

/// Algorithms that are simulated if none is named.
const DEFAULT: &str = "gradient-allreduce,bytegrad";
/// Steps to measure for a model given by its sizes.
const STEPS: u32 = 20;

/// Simulate a training step with algorithms on a cluster, in virtual time.
#[derive(Parser, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct SimulateOptions {
    /// Algorithms, separated by commas, with options as in 'slowmo(period=12)', or `all`; `list` prints all, and
    /// `help:NAME` the options of one; --faults N uses all synchronous ones by default [default:
    /// gradient-allreduce,bytegrad]
    #[arg(long)]
    pub algorithm: Option<String>,
    /// Model, ranks and links.
    #[command(flatten)]
    pub job: JobOptions,
    /// Simulate several values, as in bandwidth=1gbit,10gbit, latency=50us,5ms or ranks=8,16,32; hosts have as many
    /// ranks as with --ranks and --hosts, or one host has fewer
    #[arg(long, value_name = "WHAT=V,V,…")]
    pub sweep: Option<String>,
    /// Measured steps, or steps of --train [default: 20, or enough for whole periods of the algorithm; with --train,
    /// the default of the task, 200 or 300]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: Option<u32>,
    /// Steps before the measured ones
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub warmup: u32,
    /// Training with real numbers.
    #[command(flatten)]
    pub training: TrainingOptions,
    /// Measure the rates of this machine, write them to a file for --rates, and simulate nothing
    #[arg(long, value_name = "FILE")]
    pub calibrate: Option<PathBuf>,
    /// Faults to try.
    #[command(flatten)]
    pub faults: FaultOptions,
    /// Write the time of all ranks to a file for ui.perfetto.dev, as `train --trace` does for real ranks; for one
    /// algorithm and one cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "train"])]
    pub trace: Option<PathBuf>,
    /// Write the table as table.md and the JSON object as results.json into a folder, with plots of a --sweep
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Runs `simulate`. Returns the exit code.
///
/// # Errors
/// The first invalid option, or the error of a rank, in one line.
pub fn simulate(registry: &Registry, options: &SimulateOptions) -> Result<u8, Failure> {
    if let Some(text) = information(registry, options.algorithms(), options.job.optimizer.as_deref()) {
        print(&text?)?;
        return Ok(0);
    }
    if let Some(path) = &options.calibrate {
        calibrate::write(path)?;
        return Ok(0);
    }
    if let Some(asked) = &options.faults.faults {
        return faults::faults(registry, options, asked);
    }
    let chosen = Chosen::listed(registry, options.algorithms())?;
    let Clusters { points, swept } = options.clusters()?;
    options.prepare(&chosen)?;
    if let Some(task) = &options.training.train {
        train::train(options, task, &chosen, &points)?;
        return Ok(0);
    }
    options.measure(&chosen, &points, swept)?;
    Ok(0)
}

impl SimulateOptions {
    /// Returns the list of algorithms that are simulated.
    fn algorithms(&self) -> &str {
        self.algorithm.as_deref().unwrap_or(DEFAULT)
    }

    /// Measures the steps of each algorithm on each cluster, and reports them.
    fn measure(&self, chosen: &[Chosen], points: &[Point], swept: Option<Swept>) -> Result<(), Failure> {
        let job = self.job.job()?;
        let steps = |chosen: &Chosen| {
            let counted = self.steps.unwrap_or_else(|| whole_periods(&chosen.algorithm, STEPS));
            Steps { warmup: self.warmup, counted }
        };
        let mut report = Report::new(self, &about(&self.job.model, &job.model), &HEADING);
        let mut rows = Vec::new();
        for point in points {
            for chosen in chosen {
                let row = job.row(chosen, point, steps(chosen))?;
                report.add(&row.told(), row.json())?;
                rows.extend(swept.map(|swept| (swept.of(point), row)));
            }
        }
        if let (Some(folder), Some(swept)) = (&self.out, swept) {
            for (name, picture) in pictures::pictures(&self.job.model, swept, &rows) {
                out::write(folder, name, &picture)?;
            }
        }
        if let (Some(file), [chosen], [point]) = (&self.trace, chosen, points) {
            job.trace(chosen, point, steps(chosen))?.save(file)?;
        }
        report.finish()
    }

    /// Returns the clusters to simulate, each of which is checked.
    fn clusters(&self) -> Result<Clusters> {
        let here = self.job.point()?;
        self.job.check(&here)?;
        self.job.check_link(&here)?;
        let Some(text) = &self.sweep else { return Ok(Clusters { points: vec![here], swept: None }) };
        let Sweep { swept, points } = sweep::sweep(text, &here)?;
        if swept != Swept::Ranks {
            self.job.check_link_counts(&here)?;
        }
        points.iter().try_for_each(|point| self.job.check(point))?;
        Ok(Clusters { points, swept: Some(swept) })
    }

    /// Checks that files can be written, before the simulation starts.
    fn prepare(&self, chosen: &[Chosen]) -> Result<()> {
        if let Some(folder) = &self.out {
            out::prepare(folder)?;
        }
        let Some(file) = &self.trace else { return Ok(()) };
        if chosen.len() > 1 {
            let what = format!("--trace needs one algorithm, and {} are chosen", chosen.len());
            return Err(Error::usage(what, "name one with --algorithm"));
        }
        check_writable(file)
    }
}

/// Clusters for which there are figures.
struct Clusters {
    points: Vec<Point>,
    /// Property in which they differ.
    swept: Option<Swept>,
}
