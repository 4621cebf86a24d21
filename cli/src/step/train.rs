//! The steps that are measured: the same computation with an algorithm, and without any.

use super::Step;
use super::compute::burn;
use super::profile::Profile;
use hexagram::algorithms::local_sgd::LocalSgd;
use hexagram::algorithms::{
    AnyAlgorithm, DataParallel, EngineOptions, Mode, Optimizer, Sgd, optimizer::Section, optimizer::Update,
    registry,
};
use hexagram::logical::runtime;
use hexagram::{Buffer, Communicator, DType, Error, ReduceOp, Result};
use std::sync::Arc;

/// Learning rate of plain SGD; small, so that the parameters stay where they are.
const LEARNING_RATE: f64 = 1e-3;
/// Name that stands for no communication.
pub(super) const NONE: &str = "none";

/// Result of a measurement.
pub(super) struct Measured {
    /// Seconds a step, of the slowest rank.
    pub(super) step_s: f64,
    /// Sent a rank and step.
    pub(super) bytes: f64,
}

/// Returns the algorithm that was asked for.
pub(super) fn algorithm(options: &Step) -> Result<Option<AnyAlgorithm>> {
    match (options.algorithm.as_str(), options.period) {
        (NONE, None) => Ok(None),
        ("local-sgd", Some(0)) => Err(Error::usage("--period is 0", "give 1 step or more")),
        ("local-sgd", Some(period)) => Ok(Some(LocalSgd { period, ..LocalSgd::default() }.into())),
        (_, Some(_)) => Err(Error::usage("--period is for local-sgd", "leave it out")),
        (name, None) => registry::named(name).map(Some),
    }
}

/// Runs the warm-up and the steps that count.
pub(super) fn measure(options: &Step, comm: &Communicator, profile: &Profile) -> Result<Measured> {
    let gradients = gradients(profile, comm.rank());
    match algorithm(options)? {
        None => timed(options, comm, &mut Local::new(profile, gradients)?, profile),
        Some(algorithm) => {
            let mut trained = Trained::new(comm, profile, algorithm, gradients)?;
            let measured = timed(options, comm, &mut trained, profile)?;
            trained.engine.settle()?;
            Ok(measured)
        }
    }
}

/// A replica: what is done with the gradients that the computation yields.
trait Replica {
    fn forward(&mut self) -> Result<()>;
    fn begin(&mut self) -> Result<()>;
    fn ready(&mut self, parameter: usize) -> Result<()>;
    fn step(&mut self) -> Result<()>;
}

fn timed(
    options: &Step,
    comm: &Communicator,
    replica: &mut impl Replica,
    profile: &Profile,
) -> Result<Measured> {
    for _ in 0..options.warmup {
        step(replica, profile)?;
    }
    comm.block_on(comm.barrier())?;
    let before = comm.world().traffic().payload_sent();
    let began = runtime::now();
    for _ in 0..options.steps {
        step(replica, profile)?;
    }
    let taken = began.elapsed().as_secs_f64();
    let sent = comm.world().traffic().payload_sent() - before;
    let mut slowest = [taken];
    let mut bytes = [sent as f64];
    comm.blocking().all_reduce(&mut slowest, ReduceOp::Max)?;
    comm.blocking().all_reduce(&mut bytes, ReduceOp::Mean)?;
    let steps = f64::from(options.steps);
    Ok(Measured { step_s: slowest[0] / steps, bytes: bytes[0] / steps })
}

fn step(replica: &mut impl Replica, profile: &Profile) -> Result<()> {
    replica.forward()?;
    profile.layers.iter().try_for_each(|layer| burn(layer.forward))?;
    replica.begin()?;
    let mut parameter = profile.layers.iter().map(|layer| layer.shapes.len()).sum::<usize>();
    for layer in profile.layers.iter().rev() {
        burn(layer.backward)?;
        for _ in &layer.shapes {
            parameter -= 1;
            replica.ready(parameter)?;
        }
    }
    replica.step()
}

/// Returns values that differ between ranks and elements, as large as gradients are.
fn gradients(profile: &Profile, rank: usize) -> Vec<Vec<f32>> {
    let mut state = rank as u32 + 1;
    let mut draw = || {
        // xorshift: any bits will do.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5) * 1e-2
    };
    profile.parameters().iter().map(|parameter| (0..parameter.len()).map(|_| draw()).collect()).collect()
}

/// Steps without communication: the gradients are written where the optimizer reads them.
struct Local {
    source: Vec<Vec<f32>>,
    gradients: Vec<Buffer>,
    parameters: Vec<Buffer>,
}

impl Local {
    fn new(profile: &Profile, source: Vec<Vec<f32>>) -> Result<Self> {
        let zeroed = || -> Result<Vec<Buffer>> {
            profile.parameters().iter().map(|parameter| Buffer::zeroed(DType::F32, parameter.len())).collect()
        };
        Ok(Local { source, gradients: zeroed()?, parameters: zeroed()? })
    }
}

impl Replica for Local {
    fn forward(&mut self) -> Result<()> {
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn ready(&mut self, parameter: usize) -> Result<()> {
        self.gradients[parameter].host_mut::<f32>()?.copy_from_slice(&self.source[parameter]);
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        for (parameters, gradients) in self.parameters.iter_mut().zip(&self.gradients) {
            let learning_rate = LEARNING_RATE;
            let slots = &mut [][..];
            let tensors = &[][..];
            let sections = &[Section::whole(parameters.len())][..];
            let step = 0;
            Sgd::default().step(Update {
                step,
                learning_rate,
                tensors,
                sections,
                gradients,
                parameters,
                slots,
            })?;
        }
        Ok(())
    }
}

/// Steps with an algorithm: the gradients are written into its buckets.
struct Trained {
    engine: DataParallel,
    source: Vec<Vec<f32>>,
}

impl Trained {
    fn new(
        comm: &Communicator,
        profile: &Profile,
        algorithm: AnyAlgorithm,
        source: Vec<Vec<f32>>,
    ) -> Result<Self> {
        let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..EngineOptions::default() };
        let mut engine = DataParallel::new(comm, profile.parameters(), algorithm, options)?;
        engine.set_learning_rate(LEARNING_RATE);
        Ok(Trained { engine, source })
    }
}

impl Replica for Trained {
    fn forward(&mut self) -> Result<()> {
        self.engine.forward()
    }

    fn begin(&mut self) -> Result<()> {
        self.engine.begin(Mode::Synchronize)
    }

    fn ready(&mut self, parameter: usize) -> Result<()> {
        self.engine.hooks().ready_slice(parameter, &self.source[parameter])
    }

    fn step(&mut self) -> Result<()> {
        self.engine.finish_and_step()
    }
}
