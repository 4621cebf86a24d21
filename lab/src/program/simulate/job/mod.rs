//! A simulated job: model, ranks, hosts and links, as they are typed, and one simulated training of it.
//!
//! | file | content |
//! |---|---|
//! | `model`, `trace` | sizes and times of the layers of a model; those of a real run |
//! | `pace` | the speed of each rank in each step |
//! | `point` | a cluster, and a number of steps |

mod model;
mod pace;
mod point;
mod trace;

pub(crate) use model::{FORWARD, LayerModel, ModelLayer, matrix};
pub(super) use pace::{Pace, Paces};
pub(crate) use point::{ClusterPoint, StepCounts};

use super::file::{in_file, read};
use super::report::ReportRow;
use super::run::SimulatedRun;
use crate::program::arguments::optimizer_args;
use crate::program::{ChosenAlgorithm, OverlappedPasses};
use clap::Args;
use hexagram::algorithms::trace::Trace;
use hexagram::algorithms::{EngineOptions, Registry};
use hexagram::logical::codec;
use hexagram::logical::options_text::nearest;
use hexagram::physical::input;
use hexagram::physical::sim::{Cluster, HostSpec, LinkSpec, Rates, Shape, Simulation, Topology};
use hexagram::{Error, Result};
use pace::PaceOptions;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Rates of a GPU of 2017 (V100), at four fifths of its memory bandwidth (900 GB/s) and of its arithmetic (15.7
/// TFLOP/s). Units are bytes written, bytes read for weighted sums, bytes read and written for kernels, and elements
/// for codecs, which read and write each element once or twice.
const GPU: &str = "\
fill 7e11
copy 3.5e11
reduce 2.4e11
scale 3.5e11
weighted_sum 3.5e11
kernel 7e11
product 1.25e13
encode * 8e10
decode * 8e10
message 10us
";

/// Ranks and hosts of a job, unless others are asked for.
const RANKS: usize = 8;
const HOSTS: usize = 1;
/// Link between hosts, likewise.
const LINK: &str = "10gbit,50us";

/// Longest time of the passes of a step, in milliseconds.
const LONGEST: f64 = 1e9;
/// Seconds for which ranks may compute: a part of the 584 years of virtual time, since messages take time, too.
const ALL_TIME: f64 = 1e9;

/// Codecs inside algorithms, which are no values of an option.
const INNER: [&str; 3] = ["powersgd", "ballot", "exact"];

/// Options of a job to simulate.
#[derive(Args, Debug, Clone)]
pub struct SimulatedJobOptions {
    /// Optimizer that applies the gradients after the algorithm [default: that of the algorithm]
    #[arg(long)]
    pub optimizer: Option<String>,
    /// Computation that communication overlaps: the backward pass, or also the next forward pass
    #[arg(long, value_enum, default_value_t = OverlappedPasses::Backward)]
    pub overlap: OverlappedPasses,
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", default_value_t = RANKS)]
    pub ranks: usize,
    /// Number of hosts, on which the ranks are spread evenly
    #[arg(long, value_name = "H", default_value_t = HOSTS)]
    pub hosts: usize,
    /// Shape of the network between the hosts: flat, 'racks 4 oversubscription=2 latency=10us', 'fat-tree 8 latency=1us' or
    /// 'sites 3 link=1gbit,20ms'
    #[arg(long, default_value = "flat")]
    pub shape: Shape,
    /// File of hosts, switches and links: hosts may have different numbers of ranks and their own links
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ranks", "hosts", "shape"])]
    pub topology: Option<PathBuf>,
    /// Treat all ranks alike; by default, algorithms that support it communicate within each host first
    #[arg(long)]
    pub flat: bool,
    /// Link between hosts: the bandwidth of each host, shared by all its connections to others
    #[arg(long, value_name = "LINK", default_value = LINK)]
    pub link: LinkSpec,
    /// Link between the ranks of a host: the bandwidth of each rank, shared by all its connections to others
    #[arg(long, value_name = "LINK", default_value = "300gbit,2us")]
    pub intra: LinkSpec,
    /// Model: vgg16, resnet50, bert-large, gpt2, llama-7b, a number of parameters as 25M (with --compute), or a file:
    /// a model, the trace of a real run, or a profile of `step`
    #[arg(long, value_name = "MODEL", default_value = "vgg16")]
    pub model: String,
    /// Time of a forward and a backward pass, in milliseconds [default: that of the model]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    pub compute: Option<f64>,
    /// Time that ranks compute.
    #[command(flatten)]
    pub pace: PaceOptions,
    /// File with the rates of arithmetic and messages [default: those of a V100]
    #[arg(long, value_name = "FILE")]
    pub rates: Option<PathBuf>,
    /// Simulate the warm-up of algorithms, as in a training; by default they run without it
    #[arg(long)]
    pub from_start: bool,
    /// Simulate every step. By default, a synchronous centralized algorithm is simulated until two whole periods have
    /// taken every rank the same time, within 0.3 %; the remaining steps are extrapolated, if no times are random and
    /// the algorithm has no warm-up
    #[arg(long)]
    pub all_steps: bool,
    /// Seed of jitter, stalls and drift; with --train, also of values, data and batches
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// A job whose files have been read.
pub(crate) struct SimulatedJob<'a> {
    options: &'a SimulatedJobOptions,
    pub(crate) model: LayerModel,
    rates: Rates,
    /// Seconds of a step without communication, by optimizer and slowness.
    alone: RefCell<BTreeMap<(String, u64), f64>>,
}

impl SimulatedJobOptions {
    /// Reads the model and the rates.
    ///
    /// # Errors
    /// The first invalid option, in one line.
    pub(crate) fn job(&self) -> Result<SimulatedJob<'_>> {
        let model = LayerModel::named(&self.model, self.compute()?)?;
        Ok(SimulatedJob { options: self, model, rates: self.rates()?, alone: RefCell::default() })
    }

    /// Returns the cluster that was asked for.
    ///
    /// # Errors
    /// The first invalid line of the topology's file, in one line.
    pub(crate) fn point(&self) -> Result<ClusterPoint> {
        let Some(path) = &self.topology else {
            return Ok(ClusterPoint {
                ranks: self.ranks,
                hosts: self.hosts,
                link: self.link,
                topology: None,
            });
        };
        let text = read(path, "topology")?;
        let topology: Topology = text.parse().map_err(|error| in_file(path, error))?;
        let cluster = topology.cluster(self.link, self.intra).map_err(|error| in_file(path, error))?;
        let ranks = cluster.ranks();
        let hosts = cluster.host_count();
        Ok(ClusterPoint { ranks, hosts, link: self.link, topology: Some(Arc::new(topology)) })
    }

    /// Returns the time of both passes, if it was given.
    pub(super) fn compute(&self) -> Result<Option<Duration>> {
        let Some(millis) = self.compute else { return Ok(None) };
        if !(0.0..=LONGEST).contains(&millis) {
            let what = format!("--compute {millis} is not a valid time of a step");
            return Err(Error::usage(what, "give milliseconds, up to 1e9"));
        }
        Ok(Some(Duration::from_secs_f64(millis / 1e3)))
    }

    /// Reads the rates.
    pub(super) fn rates(&self) -> Result<Rates> {
        let Some(path) = &self.rates else { return GPU.parse() };
        let text = read(path, "rates")?;
        check_codecs(&text).and_then(|()| text.parse()).map_err(|error| in_file(path, error))
    }

    /// Returns the factor by which each rank is slower.
    pub(super) fn slowness(&self, ranks: usize) -> Result<Vec<f64>> {
        self.pace.slowness(ranks)
    }

    /// Checks that the cluster is possible, before any simulation.
    ///
    /// # Errors
    /// The reason why the cluster is impossible, in one line.
    pub(crate) fn check(&self, point: &ClusterPoint) -> Result<()> {
        self.cluster(point)?;
        self.slowness(point.ranks).map(drop)
    }

    /// Checks that --link has an effect, if it is given.
    ///
    /// # Errors
    /// As [`SimulatedJobOptions::check_link_counts`].
    pub(super) fn check_link(&self, point: &ClusterPoint) -> Result<()> {
        if self.link.to_string() == LINK { Ok(()) } else { self.check_link_counts(point) }
    }

    /// Checks that --link has an effect: that hosts use it to reach other hosts.
    ///
    /// # Errors
    /// The reason why it is not, in one line.
    pub(crate) fn check_link_counts(&self, point: &ClusterPoint) -> Result<()> {
        let is_of_none = point.topology.as_ref().is_some_and(|topology| !topology.takes_link());
        match (point.hosts, &self.topology) {
            (1, None) => {
                let what = format!("{} ranks on one host never use the link between hosts", point.ranks);
                let remedy = "give --hosts; use the number of ranks if each rank has its own host";
                Err(Error::usage(what, remedy))
            }
            (1, Some(path)) => {
                let what = format!("{} has one host, and --link is the link between hosts", path.display());
                Err(Error::usage(what, "add hosts with a line `hosts NUMBER`"))
            }
            (_, Some(path)) if is_of_none => {
                let what = format!("{} has a link= for every host, and --link has no effect", path.display());
                Err(Error::usage(what, "remove link= from the hosts that should use --link"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that no option sets a cluster, since each seed draws its own.
    ///
    /// # Errors
    /// These options, in one line.
    pub(super) fn check_drawn(&self) -> Result<()> {
        if (self.ranks, self.hosts, self.flat) == (RANKS, HOSTS, false) {
            return Ok(());
        }
        let what = "--faults N draws ranks, hosts and --flat from the seed";
        Err(Error::usage(what, "leave --ranks, --hosts and --flat out, or give a file of faults"))
    }

    fn cluster(&self, point: &ClusterPoint) -> Result<Cluster> {
        match &point.topology {
            Some(topology) => topology.cluster(point.link, self.intra),
            None => {
                let hosts = HostSpec::even(point.ranks, point.hosts, point.link, self.intra)?;
                Cluster::new(&hosts, self.shape)
            }
        }
    }

    /// Returns the simulation of a cluster.
    pub(super) fn simulation(&self, point: &ClusterPoint, rates: &Rates) -> Result<Simulation> {
        let simulation = Simulation::new(self.cluster(point)?);
        Ok(Simulation { rates: rates.clone(), seed: self.seed, ..simulation })
    }

    /// Returns true if algorithms communicate within each host first.
    pub(crate) fn is_hierarchical(&self, point: &ClusterPoint) -> bool {
        !self.flat && point.hosts > 1 && point.ranks > point.hosts
    }
}

impl SimulatedJob<'_> {
    /// Returns true if the time of steps is partly random.
    pub(crate) fn varies(&self, point: &ClusterPoint) -> bool {
        let SimulatedJobOptions { pace, link, intra, shape, .. } = self.options;
        let in_topology = point.topology.as_ref().is_some_and(|topology| topology.varies());
        pace.varies() || link.varies() || intra.varies() || shape.varies() || in_topology
    }

    /// Simulates one algorithm on one cluster.
    ///
    /// # Errors
    /// That of a rank.
    pub(crate) fn row(
        &self,
        chosen: &ChosenAlgorithm,
        point: &ClusterPoint,
        steps: StepCounts,
    ) -> Result<ReportRow> {
        let ClusterPoint { ranks, hosts, .. } = *point;
        let simulated = self.simulated(chosen);
        let paces = self.options.pace.paces(ranks, self.options.seed)?;
        let all = f64::from(steps.warmup) + f64::from(steps.counted);
        check_time(self.model.passes().as_secs_f64() * paces.slowest(steps) * all)?;
        let scene = self.scene(&simulated, point, steps, &paces)?;
        let figures = scene.run(&self.options.simulation(point, &self.rates)?)?;
        let local_s = self.local(&scene)?;
        let [algorithm, simulated] = [chosen, &simulated].map(|chosen| chosen.spelling.clone());
        Ok(ReportRow { algorithm, simulated, ranks, hosts, link: point.hosts_link(), figures, local_s })
    }

    /// Sets these rates. Sets passes such that a step with an algorithm's optimizer and without communication takes
    /// the measured time, in seconds.
    ///
    /// # Errors
    /// That of the rank.
    pub(crate) fn fit(&mut self, rates: Rates, measured_s: f64, chosen: &ChosenAlgorithm) -> Result<()> {
        self.rates = rates;
        self.alone.borrow_mut().clear();
        let scene = SimulatedRun {
            model: &self.model,
            algorithm: chosen.algorithm.clone(),
            engine: self.engine(chosen)?,
            steps: StepCounts { warmup: 1, counted: 1 },
            paces: &Paces::steady(1.0),
            all_steps: true,
        };
        let passes = self.model.passes().as_secs_f64() + measured_s - self.local(&scene)?;
        self.model = self.model.clone().taking(Duration::from_secs_f64(passes.max(1e-6)));
        self.alone.borrow_mut().clear();
        Ok(())
    }

    /// Simulates the same once more, and returns the timeline of the ranks.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn trace(
        &self,
        chosen: &ChosenAlgorithm,
        point: &ClusterPoint,
        steps: StepCounts,
    ) -> Result<Trace> {
        let paces = self.options.pace.paces(point.ranks, self.options.seed)?;
        let scene = self.scene(&self.simulated(chosen), point, steps, &paces)?;
        scene.trace(&self.options.simulation(point, &self.rates)?)
    }

    fn scene<'s>(
        &'s self,
        simulated: &ChosenAlgorithm,
        point: &ClusterPoint,
        steps: StepCounts,
        paces: &'s Paces,
    ) -> Result<SimulatedRun<'s>> {
        let hierarchical = self.options.is_hierarchical(point);
        let engine = EngineOptions { hierarchical, ..self.engine(simulated)? };
        let algorithm = simulated.algorithm.clone();
        // Draws need all steps, and the steps after a warm-up differ from those within.
        let has_warm_up = algorithm.without_warm_up().is_some();
        let all_steps = self.options.all_steps || self.varies(point) || has_warm_up;
        Ok(SimulatedRun { model: &self.model, algorithm, engine, steps, paces, all_steps })
    }

    /// Returns an algorithm without its warm-up, unless the warm-up is simulated, too.
    pub(crate) fn simulated(&self, chosen: &ChosenAlgorithm) -> ChosenAlgorithm {
        let without = chosen.algorithm.without_warm_up().filter(|_| !self.options.from_start);
        without.map_or_else(
            || chosen.clone(),
            |algorithm| ChosenAlgorithm::of(&Registry::built_in(), &algorithm),
        )
    }

    fn engine(&self, chosen: &ChosenAlgorithm) -> Result<EngineOptions> {
        let options = self.options;
        let named = chosen.algorithm.optimizers().by_default();
        let optimizer = optimizer_args::named(options.optimizer.as_deref().or(named).unwrap_or("sgd"), None)?;
        Ok(EngineOptions {
            optimizer: Some(optimizer),
            overlap: options.overlap.overlap(),
            ..EngineOptions::default()
        })
    }

    /// Returns the seconds of a step without communication, of the slowest rank.
    fn local(&self, scene: &SimulatedRun<'_>) -> Result<f64> {
        let slowest = scene.paces.slowest(scene.steps);
        let optimizer = scene.engine.optimizer.as_ref().map(|optimizer| optimizer.spelled());
        let key = (optimizer.unwrap_or_default(), slowest.to_bits());
        if let Some(known) = self.alone.borrow().get(&key) {
            return Ok(*known);
        }
        let seconds = self.alone(scene, slowest)?;
        self.alone.borrow_mut().insert(key, seconds);
        Ok(seconds)
    }

    /// Simulates a world of a single rank.
    fn alone(&self, scene: &SimulatedRun<'_>, slowness: f64) -> Result<f64> {
        let intra = self.options.intra;
        let alone =
            Simulation { rates: self.rates.clone(), ..Simulation::new(Cluster::flat(1, 1, intra, intra)?) };
        let algorithm = Registry::built_in().named("gradient-allreduce")?;
        let engine = EngineOptions { hierarchical: false, ..scene.engine.clone() };
        let steps = StepCounts { warmup: 1, counted: 1 };
        let paces = &Paces::steady(slowness);
        let scene = SimulatedRun { model: scene.model, algorithm, engine, steps, paces, all_steps: true };
        Ok(scene.run(&alone)?.step_s)
    }
}

/// Fails if a rate names a misspelt codec; the codec that is meant would then take no time. A name that is not close
/// to any other is your own codec's.
fn check_codecs(rates: &str) -> Result<()> {
    let names: Vec<&str> = codec::names().into_iter().chain(INNER).collect();
    for (at, line) in input::statements(rates) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["encode" | "decode", codec, ..] = words[..] else { continue };
        let name = codec.split('(').next().unwrap_or(codec);
        if names.contains(&name) {
            continue;
        }
        let near = nearest(name, names.iter().copied()).join(" or ");
        if !near.is_empty() && name != "*" {
            let what = format!("line {at}: unknown codec `{name}`");
            return Err(Error::usage(what, format!("did you mean {near}?")));
        }
    }
    Ok(())
}

/// Fails if a rank computes for longer than there is virtual time.
pub(super) fn check_time(seconds: f64) -> Result<()> {
    if seconds <= ALL_TIME {
        return Ok(());
    }
    let what = format!("a rank computes for {seconds:.1e} s, and virtual time is for {ALL_TIME:.0e} s");
    Err(Error::usage(what, "lower --steps, --compute or --straggler, or the times of the model"))
}
