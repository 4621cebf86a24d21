//! Measures the overhead of hooks and copies, and the overlap, in a candle training step: `cargo run --release -p
//! hexagram-candle --example overhead`.
//!
//! The ranks measure in turns; a turn has periods of several steps, which all ranks begin together:
//!
//! ```text
//! local        candle alone: forward, backward, step of candle SGD, on all ranks, without communication
//! all-reduce   only the all-reduce of the same buckets
//! hexagram     forward, then Replica::step: synchronized, the engine steps    (or backward_step with candle SGD)
//! ```
//!
//! and the result is hexagram − all-reduce − local, as a share of local: from the sums of whole periods, never from the
//! fastest step. The model is that of the benchmarks, square linear layers with ReLU between them, or with `--model` a
//! model of `candle-train`, on images of noise.
//!
//! On a GPU (`--device cuda`) calls return before the work is done; each period waits for it at the end. One rank shows
//! the cost of hooks and copies, as there is no all-reduce; `candle-train --trace` shows the overlap of communication.

mod common;

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear};
use clap::Parser;
use common::device::RankDevice;
use common::model::{ModelKind, PartwiseModel};
use hexagram::algorithms::{EngineOptions, GradientAllReduce, Sgd};
use hexagram::launch::{Job, as_rank};
use hexagram::physical::device::DeviceChoice;
use hexagram::physical::stdout::print;
use hexagram::{Buffer, Communicator, JoinOptions, Placement, ReduceOp, TransportKind, World};
use hexagram_candle::{Replica, ReplicaOptions};
use hexagram_lab::program::{console, prepare};
use hexagram_lab::run::{EXIT_CODES, RunError, failure};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

const LEARNING_RATE: f64 = 1e-3;

/// Measure what hexagram adds to a candle step, beyond the all-reduce itself.
#[derive(Parser, Debug, Clone)]
#[command(name = "overhead", version, after_help = EXIT_CODES)]
struct OverheadOptions {
    /// Ranks to start when no launcher has started them
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Transport: mixed, shm, tcp or thread
    #[arg(long, default_value = "shm")]
    transport: String,
    /// Device: cpu, cuda (a GPU for each rank of a host in turn), cuda:N, or auto
    #[arg(long, value_name = "NAME", default_value_t)]
    device: DeviceChoice,
    /// Model of `candle-train`, on images of 3 × 32 × 32, instead of square layers: small, resnet14 or resnet50
    #[arg(long, value_enum, hide_possible_values = true)]
    model: Option<ModelKind>,
    /// Samples per rank and step, one measurement each
    #[arg(long, value_delimiter = ',', default_value = "32,256")]
    batch: Vec<usize>,
    /// Square layers
    #[arg(long, default_value_t = 8)]
    layers: usize,
    /// Their width
    #[arg(long, default_value_t = 1024)]
    width: usize,
    /// Turns, of one period of each kind
    #[arg(long, default_value_t = 8)]
    periods: usize,
    /// Steps of a period
    #[arg(long, default_value_t = 10)]
    steps: usize,
    /// Step with candle's optimizer instead of the engine's
    #[arg(long)]
    candle_optimizer: bool,
}

fn main() -> ExitCode {
    if let Err(code) = prepare("") {
        return code;
    }
    match OverheadOptions::try_parse() {
        Ok(options) => start(&options).unwrap_or_else(|error| failure("overhead", &*error)),
        Err(shown) => console::instead("overhead", &shown),
    }
}

/// Runs this rank, or starts all of them.
fn start(options: &OverheadOptions) -> Result<ExitCode, RunError> {
    let transport: TransportKind = options.transport.parse()?;
    let Some(placement) = Placement::from_env()? else {
        let outcome = Job::of_this_program(options.ranks)?.run()?;
        return Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)));
    };
    let world = World::join_as(&placement, &JoinOptions { transport, ..JoinOptions::default() })?;
    as_rank(world, |world| {
        let comm = Communicator::open(&world, 0)?;
        let place = RankDevice::open(options.device, world.local_rank())?;
        options.batch.iter().try_for_each(|batch| measure(&comm, options, &place, *batch))
    })?;
    Ok(ExitCode::SUCCESS)
}

enum MeasuredNet {
    Square(Vec<Linear>),
    Known(Box<dyn PartwiseModel>),
}

/// Channels, rows and columns of the images for a model that `train` supports.
const IMAGE: [usize; 3] = [3, 32, 32];

impl MeasuredNet {
    fn new(vb: VarBuilder<'_>, options: &OverheadOptions) -> candle_core::Result<Self> {
        if let Some(model) = options.model {
            return model.build(vb, IMAGE).map(MeasuredNet::Known);
        }
        let layer = |at: usize| linear(options.width, options.width, vb.pp(at));
        Ok(MeasuredNet::Square((0..options.layers).map(layer).collect::<candle_core::Result<_>>()?))
    }

    fn loss(&self, (x, y): &(Tensor, Tensor)) -> candle_core::Result<Tensor> {
        let forward = |x: Tensor, layer: &Linear| layer.forward(&x)?.relu();
        match self {
            MeasuredNet::Square(layers) => {
                (layers.iter().try_fold(x.clone(), forward)? - y)?.sqr()?.mean_all()
            }
            MeasuredNet::Known(model) => model.forward_t(x, true)?.sqr()?.mean_all(),
        }
    }
}

/// Seconds of one period of each kind.
#[derive(Clone, Copy)]
struct PeriodTimes {
    local: f64,
    all_reduce: f64,
    hexagram: f64,
}

fn measure(
    comm: &Communicator,
    options: &OverheadOptions,
    place: &RankDevice,
    batch: usize,
) -> Result<(), RunError> {
    let shape: &[usize] = if options.model.is_some() { &IMAGE } else { &[options.width] };
    let data = |seed: f64| -> candle_core::Result<Tensor> {
        let value = |at: usize| ((at as f64 * 0.7311 + seed + comm.rank() as f64).sin() * 1.7) as f32;
        let values: Vec<f32> = (0..batch * shape.iter().product::<usize>()).map(value).collect();
        Tensor::from_vec(values, [&[batch], shape].concat(), &place.device)
    };
    let samples = (data(0.0)?, data(0.5)?);
    let mut local = local(options, &place.device)?;
    let (net, mut replica, mut optimizer) = together(comm, options, place)?;
    let mut step = |replica: &mut Replica| -> Result<(), RunError> {
        replica.forward()?;
        let loss = net.loss(&samples)?;
        match options.candle_optimizer {
            true => replica.backward_step(&mut optimizer, &loss)?,
            false => replica.step(&loss)?,
        }
        Ok(())
    };
    // Its buckets are final after the first step.
    step(&mut replica)?;
    let mut buckets = registered(comm, &replica, place)?;
    let mut turns = Vec::new();
    for turn in 0..=options.periods {
        let local = period(comm, options.steps, place, || Ok(local(&samples)?))?;
        let all_reduce = period(comm, options.steps, place, || {
            let mut each = buckets.iter_mut();
            Ok(each.try_for_each(|bucket| comm.block_on(comm.all_reduce(bucket, ReduceOp::Mean)))?)
        })?;
        let hexagram = period(comm, options.steps, place, || step(&mut replica))?;
        // The first turn warms up caches and clocks.
        if turn > 0 {
            turns.push(PeriodTimes { local, all_reduce, hexagram });
        }
    }
    if comm.rank() == 0 {
        print(&report(options, comm.size(), batch, &turns))?;
    }
    Ok(())
}

/// Makes a step with candle alone.
fn local(
    options: &OverheadOptions,
    device: &Device,
) -> Result<impl FnMut(&(Tensor, Tensor)) -> candle_core::Result<()>, RunError> {
    let varmap = VarMap::new();
    let net = MeasuredNet::new(VarBuilder::from_varmap(&varmap, DType::F32, device), options)?;
    let mut optimizer = SGD::new(varmap.all_vars(), LEARNING_RATE)?;
    Ok(move |samples: &(Tensor, Tensor)| optimizer.backward_step(&net.loss(samples)?))
}

/// Builds the same model on all ranks.
fn together(
    comm: &Communicator,
    options: &OverheadOptions,
    place: &RankDevice,
) -> Result<(MeasuredNet, Replica, SGD), RunError> {
    let varmap = VarMap::new();
    let mut engine = EngineOptions { queue: place.queue.clone(), ..Default::default() };
    if !options.candle_optimizer {
        engine.optimizer = Some(Arc::new(Sgd::default()));
    }
    let device = place.device.clone();
    let replica_options =
        ReplicaOptions { algorithm: GradientAllReduce.into(), engine, device, ..Default::default() };
    let (net, mut replica) =
        Replica::build(comm, &varmap, replica_options, |vb| MeasuredNet::new(vb, options))?;
    replica.set_learning_rate(LEARNING_RATE);
    Ok((net, replica, SGD::new(varmap.all_vars(), LEARNING_RATE)?))
}

/// Creates buffers like those of the engine.
fn registered(comm: &Communicator, replica: &Replica, place: &RankDevice) -> Result<Vec<Buffer>, RunError> {
    let buckets = replica.engine().telemetry().buckets().into_iter();
    let make = |(dtype, len)| comm.registered_on(&place.queue, dtype, len);
    Ok(buckets.map(make).collect::<hexagram::Result<_>>()?)
}

/// Returns the seconds of a period, with a common start of all ranks, until the device is done.
fn period(
    comm: &Communicator,
    steps: usize,
    place: &RankDevice,
    mut step: impl FnMut() -> Result<(), RunError>,
) -> Result<f64, RunError> {
    comm.blocking().barrier()?;
    let began = Instant::now();
    (0..steps).try_for_each(|_| step())?;
    place.device.synchronize()?;
    place.queue.check()?;
    Ok(began.elapsed().as_secs_f64())
}

fn report(options: &OverheadOptions, ranks: usize, batch: usize, turns: &[PeriodTimes]) -> String {
    let of = |turns: &[PeriodTimes]| {
        let mean = |of: fn(&PeriodTimes) -> f64| {
            let sum: f64 = turns.iter().map(of).sum();
            1e3 * sum / (turns.len() * options.steps) as f64
        };
        [mean(|turn| turn.local), mean(|turn| turn.all_reduce), mean(|turn| turn.hexagram)]
    };
    let share = |[local, all_reduce, hexagram]: [f64; 3]| 100.0 * (hexagram - all_reduce - local) / local;
    let pairs: Vec<String> = turns.iter().map(|turn| format!("{:.1}", share(of(&[*turn])))).collect();
    let all = of(turns);
    let optimizer = if options.candle_optimizer { "candle's SGD" } else { "the engine's SGD" };
    format!(
        "batch {batch} on {}, {ranks} ranks over {}, {optimizer}: local {:.2} ms, all-reduce {:.2} ms, hexagram {:.2} ms a step\n\
         beyond the all-reduce {:+.2} ms = {:+.1} % of the local step (period by period: {} %)",
        options.device,
        options.transport,
        all[0],
        all[1],
        all[2],
        all[2] - all[1] - all[0],
        share(all),
        pairs.join(", ")
    )
}
