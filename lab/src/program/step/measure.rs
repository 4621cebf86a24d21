//! The steps that are measured: the same computation with an algorithm, and without any.

use super::Measurement;
use super::compute::Processor;
use super::profile::Profile;
use hexagram::algorithms::optimizer::{Section, Update};
use hexagram::algorithms::{DataParallel, Mode, Optimizer, Tensor};
use hexagram::physical::runtime;
use hexagram::{Buffer, Communicator, DType, ReduceOp, Result};
use std::sync::Arc;

/// Learning rate; small, so that the parameters stay where they are.
const LEARNING_RATE: f64 = 1e-3;

/// Result of a measurement.
pub(crate) struct Measured {
    /// Seconds a step, of the slowest rank.
    pub(crate) step_s: f64,
    /// Sent a rank and step.
    pub(crate) bytes: f64,
}

impl Measurement<'_> {
    /// Runs the warm-up and the steps that count.
    ///
    /// # Errors
    /// Those of the ranks.
    pub(crate) fn run(&self, comm: &Communicator) -> Result<Measured> {
        let gradients = gradients(&self.profile, comm.rank());
        let Some(chosen) = &self.chosen else {
            let mut local = Local::new(&self.profile, self.processor(), &self.optimizer, gradients)?;
            return self.timed(comm, &mut local);
        };
        let algorithm = chosen.algorithm.clone();
        let mut engine = DataParallel::new(comm, self.profile.parameters(), algorithm, self.engine())?;
        engine.set_learning_rate(LEARNING_RATE);
        let mut trained = EngineReplica { engine, processor: self.processor(), source: gradients };
        let measured = self.timed(comm, &mut trained)?;
        trained.engine.settle()?;
        Ok(measured)
    }

    fn timed(&self, comm: &Communicator, replica: &mut impl MeasuredReplica) -> Result<Measured> {
        for _ in 0..self.options.warmup {
            replica.step(&self.profile)?;
        }
        replica.complete()?;
        comm.block_on(comm.barrier())?;
        let before = comm.world().traffic().payload_sent();
        let began = runtime::now();
        for _ in 0..self.steps {
            replica.step(&self.profile)?;
        }
        replica.complete()?;
        let taken = began.elapsed().as_secs_f64();
        let sent = comm.world().traffic().payload_sent() - before;
        let mut slowest = [taken];
        let mut bytes = [sent as f64];
        comm.blocking().all_reduce(&mut slowest, ReduceOp::Max)?;
        comm.blocking().all_reduce(&mut bytes, ReduceOp::Mean)?;
        let steps = f64::from(self.steps);
        Ok(Measured { step_s: slowest[0] / steps, bytes: bytes[0] / steps })
    }
}

/// A replica: it uses the gradients of the computation.
trait MeasuredReplica {
    /// Makes one step, during the computation of a profile.
    fn step(&mut self, profile: &Profile) -> Result<()>;

    /// Waits for the messages that the last step left in flight.
    fn complete(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Spends the time of a forward pass; before each layer it calls `enters` with the numbers of its parameters.
fn forward(profile: &Profile, on: Processor, mut enters: impl FnMut(&[usize]) -> Result<()>) -> Result<()> {
    let mut next = 0;
    for layer in &profile.layers {
        let own: Vec<usize> = (next..next + layer.shapes.len()).collect();
        next += own.len();
        enters(&own)?;
        on.compute(layer.forward)?;
    }
    Ok(())
}

/// Spends the time of a backward pass, and calls `ready` for each parameter as soon as its gradient is ready.
fn backward(profile: &Profile, on: Processor, mut ready: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let mut parameter = profile.layers.iter().map(|layer| layer.shapes.len()).sum::<usize>();
    for layer in profile.layers.iter().rev() {
        on.compute(layer.backward)?;
        for _ in &layer.shapes {
            parameter -= 1;
            ready(parameter)?;
        }
    }
    Ok(())
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
    processor: Processor,
    source: Vec<Vec<f32>>,
    optimizer: Arc<dyn Optimizer>,
    step: u64,
    parameters: Vec<Stepped>,
}

/// Parameter with the state of the optimizer.
struct Stepped {
    tensor: Tensor,
    gradients: Buffer,
    values: Buffer,
    slots: Vec<Buffer>,
}

impl Local {
    fn new(
        profile: &Profile,
        processor: Processor,
        optimizer: &Arc<dyn Optimizer>,
        source: Vec<Vec<f32>>,
    ) -> Result<Self> {
        let zeroed = |elements: usize| Buffer::zeroed(DType::F32, elements);
        let mut parameters = Vec::new();
        for parameter in profile.parameters() {
            let elements = parameter.len();
            let tensor =
                Tensor { name: parameter.name.into(), shape: parameter.shape, elements: 0..elements };
            let slots = optimizer.slots().iter().map(|slot| zeroed(optimizer.slot_len(slot, &tensor)));
            let slots = slots.collect::<Result<_>>()?;
            parameters.push(Stepped {
                tensor,
                gradients: zeroed(elements)?,
                values: zeroed(elements)?,
                slots,
            });
        }
        Ok(Local { processor, source, optimizer: Arc::clone(optimizer), step: 0, parameters })
    }
}

impl MeasuredReplica for Local {
    fn step(&mut self, profile: &Profile) -> Result<()> {
        forward(profile, self.processor, |_| Ok(()))?;
        backward(profile, self.processor, |parameter| {
            let gradients = &mut self.parameters[parameter].gradients;
            gradients.host_mut::<f32>()?.copy_from_slice(&self.source[parameter]);
            Ok(())
        })?;
        for Stepped { tensor, gradients, values, slots } in &mut self.parameters {
            let section = Section { tensors: 0..1, ..Section::whole(values.len()) };
            self.optimizer.step(Update {
                step: self.step,
                learning_rate: LEARNING_RATE,
                tensors: std::slice::from_ref(tensor),
                sections: &[section],
                gradients,
                parameters: values,
                slots,
            })?;
        }
        self.step += 1;
        Ok(())
    }
}

/// Steps with an algorithm: the gradients are written into its buckets.
struct EngineReplica {
    engine: DataParallel,
    processor: Processor,
    source: Vec<Vec<f32>>,
}

impl MeasuredReplica for EngineReplica {
    fn complete(&mut self) -> Result<()> {
        (0..self.source.len()).try_for_each(|parameter| self.engine.wait_for(&[parameter]))
    }

    fn step(&mut self, profile: &Profile) -> Result<()> {
        let source = &self.source;
        let on = self.processor;
        self.engine.step_with(|engine| {
            engine.forward()?;
            forward(profile, on, |parameters| engine.wait_for(parameters))?;
            engine.set_loss(1.0);
            engine.begin(Mode::Synchronize)?;
            let hooks = engine.hooks();
            backward(profile, on, |parameter| hooks.ready_slice(parameter, &source[parameter]))
        })
    }
}
