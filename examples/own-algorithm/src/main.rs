//! Trains on handwritten digits with gradient-allreduce and with the algorithm of this crate, by turns, and compares
//! accuracy, bytes and time: `cargo run --release -p hexagram-own-algorithm`, or the program under `hexagram run -n 4 --`.

mod digits;

use digits::Digits;
use hexagram::algorithms::{
    AnyAlgorithm, DataParallel, EngineOptions, GradientAllReduce, Mode, Parameter, Sgd,
};
use hexagram::launch::{as_rank, as_threads};
use hexagram::physical::stdout::print;
use hexagram::{Buffer, Communicator, DType, JoinOptions, Placement, ReduceOp, Result, World};
use hexagram_own_algorithm::AdaptiveLocalSgd;
use std::sync::Arc;
use std::time::Instant;

/// Steps of a training, and samples of a rank in each.
const STEPS: usize = 1000;
const BATCH: usize = 16;

/// Anything that ends a rank.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    // A rank that a launcher has started, or four threads.
    match Placement::from_env()? {
        Some(placement) => as_rank(World::join_as(&placement, &JoinOptions::default())?, compare),
        None => as_threads(4, |world| as_rank(world, compare))?.into_iter().collect(),
    }
}

/// Runs one rank of the comparison.
fn compare(world: World) -> Result<(), Failure> {
    let comm = Communicator::open(&world, 0)?;
    let digits = Digits::load();
    let mut ratios = Vec::new();
    for _ in 0..5 {
        // In pairs, so that whatever else the machine does meets both.
        let plain = train(&comm, GradientAllReduce.into(), &digits)?;
        let own = train(&comm, AdaptiveLocalSgd { tolerance: 0.02 }.into(), &digits)?;
        ratios.push(own.seconds / plain.seconds);
        if comm.rank() == 0 {
            print(&format!("gradient-allreduce  {plain}"))?;
            print(&format!("adaptive-local-sgd  {own}"))?;
        }
    }
    if comm.rank() == 0 {
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        let text = "time of adaptive-local-sgd / gradient-allreduce, pair by pair";
        print(&format!("{text}: {ratios:.2?}, mean {mean:.2}"))?;
    }
    Ok(())
}

/// Outcome of a training, of all ranks together.
struct Outcome {
    accuracy: f64,
    bytes: f64,
    seconds: f64,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = 100.0 * self.accuracy;
        let micros = 1e6 * self.seconds / STEPS as f64;
        write!(f, "{percent:.1} % right, {:.0} bytes and {micros:.0} µs a rank and step", self.bytes)
    }
}

/// Trains a linear classifier with any algorithm.
fn train(comm: &Communicator, algorithm: AnyAlgorithm, digits: &Digits) -> Result<Outcome> {
    let weights = Parameter { name: "weights".into(), dtype: DType::F32, shape: digits::WEIGHTS.into() };
    let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..EngineOptions::default() };
    let mut engine = DataParallel::new(comm, vec![weights], algorithm, options)?;
    engine.set_learning_rate(0.2);
    engine.set_parameter(0, &Buffer::zeroed(DType::F32, digits::WEIGHTS.iter().product())?)?;
    let hooks = engine.hooks();
    let before = comm.world().traffic().payload_sent();
    let started = Instant::now();
    for step in 0..STEPS {
        let batch = (0..BATCH).map(|at| (step * BATCH + at) * comm.size() + comm.rank());
        let gradient = digits.gradient(&engine.values::<f32>(0)?, batch);
        engine.begin(Mode::Synchronize)?;
        hooks.ready_slice(0, &gradient)?;
        engine.finish()?;
        engine.step()?;
    }
    // Of all ranks: one that waits less, another waits for.
    let spent = [(comm.world().traffic().payload_sent() - before) as f64, started.elapsed().as_secs_f64()];
    let mut spent = spent.map(|spent| spent / comm.size() as f64);
    comm.blocking().all_reduce(&mut spent, ReduceOp::Sum)?;
    engine.average()?;
    let accuracy = digits.accuracy(&engine.values::<f32>(0)?);
    Ok(Outcome { accuracy, bytes: spent[0] / STEPS as f64, seconds: spent[1] })
}
