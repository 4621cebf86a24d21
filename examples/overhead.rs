//! Measures what hooks, copies and overlap add to a candle training step: `cargo run --release --example overhead`.
//!
//! The ranks take turns, each turn in periods of several steps that all ranks begin together:
//!
//! ```text
//! local        candle alone: forward, backward, step of candle's SGD; the ranks compute side by side and say nothing
//! all-reduce   nothing but the all-reduce of the same buckets
//! hexagram     forward, then Replica::step: synchronized, the engine steps    (or backward_step with candle's SGD)
//! ```
//!
//! and the figure is hexagram − all-reduce − local, as a share of local: of whole periods, summed, never of a lucky
//! step. The model is that of the benchmarks, square linear layers with ReLU between them.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear};
use clap::Parser;
use hexagram::algorithms::{EngineOptions, GradientAllReduce, Sgd};
use hexagram::launch::{Job, as_rank};
use hexagram::physical::stdout::print;
use hexagram::{Buffer, Communicator, JoinOptions, Placement, ReduceOp, TransportKind, World};
use hexagram_candle::{Replica, ReplicaOptions};
use hexagram_examples::Failure;
use hexagram_examples::progress::{EXIT_CODES, failure, options};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

const LEARNING_RATE: f64 = 1e-3;

/// Measure what hexagram adds to a candle step, beyond the all-reduce itself.
#[derive(Parser, Debug, Clone)]
#[command(name = "overhead", version, after_help = EXIT_CODES)]
struct Options {
    /// Ranks to start when no launcher has started them
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Transport: mixed, shm, tcp or thread
    #[arg(long, default_value = "shm")]
    transport: String,
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
    match options("overhead") {
        Ok(options) => start(&options).unwrap_or_else(|error| failure("overhead", &*error)),
        Err(code) => code,
    }
}

/// Runs this rank, or starts all of them.
fn start(options: &Options) -> Result<ExitCode, Failure> {
    let transport: TransportKind = options.transport.parse()?;
    let Some(placement) = Placement::from_env()? else {
        let outcome = Job::of_this_program(options.ranks)?.run()?;
        return Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)));
    };
    let world = World::join_as(&placement, &JoinOptions { transport, ..JoinOptions::default() })?;
    as_rank(world, |world| {
        let comm = Communicator::open(&world, 0)?;
        options.batch.iter().try_for_each(|batch| measure(&comm, options, *batch))
    })?;
    Ok(ExitCode::SUCCESS)
}

struct Net(Vec<Linear>);

impl Net {
    fn new(vb: VarBuilder<'_>, options: &Options) -> candle_core::Result<Self> {
        let layer = |at: usize| linear(options.width, options.width, vb.pp(at));
        Ok(Net((0..options.layers).map(layer).collect::<candle_core::Result<_>>()?))
    }

    fn loss(&self, (x, y): &(Tensor, Tensor)) -> candle_core::Result<Tensor> {
        let forward = |x: Tensor, layer: &Linear| layer.forward(&x)?.relu();
        (self.0.iter().try_fold(x.clone(), forward)? - y)?.sqr()?.mean_all()
    }
}

/// Seconds of one period of each kind.
#[derive(Clone, Copy)]
struct Turn {
    local: f64,
    all_reduce: f64,
    hexagram: f64,
}

fn measure(comm: &Communicator, options: &Options, batch: usize) -> Result<(), Failure> {
    let data = |seed: f64| -> candle_core::Result<Tensor> {
        let value = |at: usize| ((at as f64 * 0.7311 + seed + comm.rank() as f64).sin() * 1.7) as f32;
        let values: Vec<f32> = (0..batch * options.width).map(value).collect();
        Tensor::from_vec(values, (batch, options.width), &Device::Cpu)
    };
    let samples = (data(0.0)?, data(0.5)?);
    let mut local = local(options)?;
    let (net, mut replica, mut optimizer) = together(comm, options)?;
    let mut step = |replica: &mut Replica| -> Result<(), Failure> {
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
    let mut buckets = registered(comm, &replica)?;
    let mut turns = Vec::new();
    for turn in 0..=options.periods {
        let local = period(comm, options.steps, || Ok(local(&samples)?))?;
        let all_reduce = period(comm, options.steps, || {
            let mut each = buckets.iter_mut();
            Ok(each.try_for_each(|bucket| comm.block_on(comm.all_reduce(bucket, ReduceOp::Mean)))?)
        })?;
        let hexagram = period(comm, options.steps, || step(&mut replica))?;
        // The first turn warms up caches and clocks.
        if turn > 0 {
            turns.push(Turn { local, all_reduce, hexagram });
        }
    }
    if comm.rank() == 0 {
        print(&report(options, comm.size(), batch, &turns))?;
    }
    Ok(())
}

/// Makes a step of candle alone.
fn local(options: &Options) -> Result<impl FnMut(&(Tensor, Tensor)) -> candle_core::Result<()>, Failure> {
    let varmap = VarMap::new();
    let net = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu), options)?;
    let mut optimizer = SGD::new(varmap.all_vars(), LEARNING_RATE)?;
    Ok(move |samples: &(Tensor, Tensor)| optimizer.backward_step(&net.loss(samples)?))
}

/// Builds the same model on all ranks.
fn together(comm: &Communicator, options: &Options) -> Result<(Net, Replica, SGD), Failure> {
    let varmap = VarMap::new();
    let mut replica_options = ReplicaOptions { algorithm: GradientAllReduce.into(), ..Default::default() };
    if !options.candle_optimizer {
        let engine = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..Default::default() };
        replica_options.engine = engine;
    }
    let (net, mut replica) = Replica::build(comm, &varmap, replica_options, |vb| Net::new(vb, options))?;
    replica.set_learning_rate(LEARNING_RATE);
    Ok((net, replica, SGD::new(varmap.all_vars(), LEARNING_RATE)?))
}

/// Creates buffers like those of the engine.
fn registered(comm: &Communicator, replica: &Replica) -> Result<Vec<Buffer>, Failure> {
    let buckets = replica.engine().telemetry().buckets().into_iter();
    Ok(buckets.map(|(dtype, len)| comm.registered(dtype, len)).collect::<hexagram::Result<_>>()?)
}

/// Returns the seconds that so many steps take, all ranks starting together.
fn period(
    comm: &Communicator,
    steps: usize,
    mut step: impl FnMut() -> Result<(), Failure>,
) -> Result<f64, Failure> {
    comm.blocking().barrier()?;
    let began = Instant::now();
    (0..steps).try_for_each(|_| step())?;
    Ok(began.elapsed().as_secs_f64())
}

fn report(options: &Options, ranks: usize, batch: usize, turns: &[Turn]) -> String {
    let of = |turns: &[Turn]| {
        let mean = |of: fn(&Turn) -> f64| {
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
        "batch {batch}, {ranks} ranks over {}, {optimizer}: local {:.2} ms, all-reduce {:.2} ms, hexagram {:.2} ms a step\n\
         beyond the all-reduce {:+.2} ms = {:+.1} % of the local step (period by period: {} %)",
        options.transport,
        all[0],
        all[1],
        all[2],
        all[2] - all[1] - all[0],
        share(all),
        pairs.join(", ")
    )
}
