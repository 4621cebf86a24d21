//! One simulated training: the real engine and algorithm on every rank, with buffers that have sizes only.

use super::job::{LayerModel, Pace, Paces, StepCounts};
use super::repeats::{Repeats, StepCost};
use hexagram::algorithms::trace::Trace;
use hexagram::algorithms::{AnyAlgorithm, DataParallel, EngineOptions, Mode};
use hexagram::physical::Device;
use hexagram::physical::runtime::{self, Instant};
use hexagram::physical::sim::{Outcome, Phantom, Simulation};
use hexagram::{Communicator, Error, Result, TransportKind, World};
use std::time::Duration;
use tracing_subscriber::util::SubscriberInitExt;

/// Learning rate, which has no effect: the buffers have no contents.
const LEARNING_RATE: f64 = 1e-3;

/// Longest time in which nothing of an operation moves: a message moves as a whole here, and takes as long as its link is
/// slow.
const DEADLINE: Duration = Duration::from_secs(1 << 30);

/// A training to simulate.
pub(super) struct SimulatedRun<'a> {
    pub(super) model: &'a LayerModel,
    pub(super) algorithm: AnyAlgorithm,
    pub(super) engine: EngineOptions,
    pub(super) steps: StepCounts,
    /// Factors by which the passes of each rank take longer in each step.
    pub(super) paces: &'a Paces,
    /// True to simulate every step, even if periods are equal.
    pub(super) all_steps: bool,
}

/// Figures of a simulated training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    /// Seconds a step, of the rank that took longest.
    pub(crate) step_s: f64,
    /// Bytes that a rank sends in a step, within its host and to others, mean of all ranks.
    pub(crate) bytes: f64,
    /// Bytes of these that leave the host.
    pub(crate) network_bytes: f64,
    /// Events of the simulation.
    pub(crate) events: u64,
    /// Hash of all events.
    pub(crate) fingerprint: u64,
    /// Steps that were simulated, of those that count; the others are like them.
    pub(super) simulated_steps: usize,
}

/// Moment of one rank.
#[derive(Clone, Copy)]
struct RankMoment {
    at: Instant,
    sent: SentBytes,
}

impl RankMoment {
    /// Returns the present one.
    fn of(world: &World) -> Self {
        RankMoment { at: runtime::now(), sent: SentBytes::by(world) }
    }

    fn since(self, before: RankMoment) -> StepCost {
        StepCost { took: self.at.duration_since(before.at), sent: self.sent.since(before.sent) }
    }
}

/// Bytes that a rank has sent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SentBytes {
    pub(super) all: u64,
    /// Part of it that went to other hosts.
    network: u64,
}

impl SentBytes {
    fn by(world: &World) -> Self {
        let traffic = world.traffic();
        SentBytes { all: traffic.payload_sent(), network: traffic.payload_sent_by(TransportKind::Sim) }
    }

    fn since(self, before: SentBytes) -> Self {
        SentBytes { all: self.all - before.all, network: self.network - before.network }
    }

    pub(super) fn and(self, more: SentBytes) -> Self {
        SentBytes { all: self.all + more.all, network: self.network + more.network }
    }

    pub(super) fn times(self, times: u32) -> Self {
        SentBytes { all: self.all * u64::from(times), network: self.network * u64::from(times) }
    }
}

impl SimulatedRun<'_> {
    /// Runs the training on the ranks of a cluster.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn run(&self, simulation: &Simulation) -> Result<Figures> {
        let ranks = simulation.cluster.ranks();
        let repeats = Repeats::new(ranks, &self.algorithm, self.steps, self.all_steps);
        let outcome = silently(simulation, |world| self.rank(&world, &repeats))?;
        let counted = outcome.results.into_iter().collect::<Result<Vec<_>>>()?;
        let steps = f64::from(self.steps.counted);
        let taken = |one: &StepCost| one.took.as_secs_f64();
        let mean = |of: fn(&SentBytes) -> u64| {
            let sum: u64 = counted.iter().map(|one| of(&one.sent)).sum();
            sum as f64 / steps / counted.len() as f64
        };
        Ok(Figures {
            step_s: counted.iter().map(taken).fold(0.0, f64::max) / steps,
            bytes: mean(|sent| sent.all),
            network_bytes: mean(|sent| sent.network),
            events: outcome.events,
            fingerprint: outcome.fingerprint,
            simulated_steps: repeats.made(),
        })
    }

    /// Runs the same training, and returns the timeline of its ranks.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn trace(&self, simulation: &Simulation) -> Result<Trace> {
        let outcome = silently(simulation, |world| {
            self.trained(&world, |engine, pace| {
                engine.trace().begin()?;
                self.steps(engine, pace, self.steps.counted)?;
                engine.trace().collect()
            })
        })?;
        let traces = outcome.results.into_iter().collect::<Result<Vec<_>>>()?;
        let nothing = || Error::usage("the simulated ranks left no trace", "report this defect");
        traces.into_iter().flatten().next().ok_or_else(nothing)
    }

    /// Trains as one rank. Returns the cost of all counted steps, including those that were left out.
    fn rank(&self, world: &World, repeats: &Repeats) -> Result<StepCost> {
        self.trained(world, |engine, pace| {
            let start = RankMoment::of(world);
            let mut before = start;
            for (number, slowness) in pace.take(self.steps.counted as usize).enumerate() {
                if !repeats.begin(number) {
                    break;
                }
                self.step(engine, slowness)?;
                let now = RankMoment::of(world);
                repeats.end(world.rank(), now.since(before));
                before = now;
            }
            self.complete(engine)?;
            let made = RankMoment::of(world).since(start);
            let left_out = repeats.left_out(world.rank());
            Ok(StepCost { took: made.took + left_out.took, sent: made.sent.and(left_out.sent) })
        })
    }

    /// Runs `work` with the engine of a rank, after the steps that do not count.
    fn trained<R>(
        &self,
        world: &World,
        work: impl FnOnce(&mut DataParallel, &mut Pace) -> Result<R>,
    ) -> Result<R> {
        let comm = Communicator::open(world, 0)?;
        comm.set_deadline(DEADLINE);
        let engine = EngineOptions { queue: Phantom.queue()?, ..self.engine.clone() };
        let mut engine = DataParallel::new(&comm, self.model.parameters(), self.algorithm.clone(), engine)?;
        engine.set_learning_rate(LEARNING_RATE);
        let mut pace = self.paces.of(world.rank());
        self.steps(&mut engine, &mut pace, self.steps.warmup)?;
        // Ranks that leave the initial broadcast late would otherwise count it in their steps.
        self.complete(&mut engine)?;
        comm.block_on(comm.barrier())?;
        let result = work(&mut engine, &mut pace)?;
        engine.settle()?;
        Ok(result)
    }

    /// Makes this many steps, with the next of a rank's factors.
    fn steps(&self, engine: &mut DataParallel, pace: &mut Pace, steps: u32) -> Result<()> {
        pace.take(steps as usize).try_for_each(|slowness| self.step(engine, slowness))
    }

    /// Waits for the messages that the last step left in flight.
    fn complete(&self, engine: &mut DataParallel) -> Result<()> {
        (0..self.model.layers.len()).try_for_each(|parameter| engine.wait_for(&[parameter]))
    }

    fn step(&self, engine: &mut DataParallel, slowness: f64) -> Result<()> {
        let layers = &self.model.layers;
        let pass = |time: Duration| runtime::sleep(time.mul_f64(slowness));
        engine.step_with(|engine| {
            engine.forward()?;
            for (parameter, layer) in layers.iter().enumerate() {
                engine.wait_for(&[parameter])?;
                pass(layer.forward);
            }
            engine.set_loss(1.0);
            engine.begin(Mode::Synchronize)?;
            let hooks = engine.hooks();
            for (parameter, layer) in layers.iter().enumerate().rev() {
                pass(layer.backward);
                hooks.ready_in_bucket(parameter)?;
            }
            Ok(())
        })
    }
}

/// Runs a simulation without the warnings of its ranks: on slow links they wait for long, and would warn as real
/// ranks do.
fn silently<R: Send>(simulation: &Simulation, rank: impl Fn(World) -> R + Sync) -> Result<Outcome<R>> {
    let _silent = tracing_subscriber::registry().set_default();
    simulation.run(rank)
}
