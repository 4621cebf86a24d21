//! The engine: it runs any [`Algorithm`](crate::Algorithm) beside a training loop, whatever the framework.
//!
//! ```text
//! training thread                       communication thread
//! ---------------                       --------------------
//! forward                          ──►  hooks before_forward
//! begin
//!   backward … ready(p) … ready(q) ──►  a bucket is complete: hook gradients_ready when its turn comes,
//!   backward goes on                    several in flight, each in a lane of its own
//! finish: wait for the last bucket ◄──  hooks after_backward; bucket done
//! step: optimizer                  ──►  hooks after_step
//!       wait                       ◄──  bucket done
//! ```
//!
//! A framework's adapter lists the [`Parameter`]s, calls [`Hooks::ready`] from inside the backward pass for each
//! gradient that is complete, and either lets the engine's optimizer step ([`DataParallel::step`]) and reads the
//! parameters, or hands [`DataParallel::gradient`] to the framework's own. Before the first step it calls
//! [`Initial::broadcast_state`], before each forward pass [`DataParallel::synchronize_buffers`], after the last step
//! [`DataParallel::settle`] or [`DataParallel::average`]; in between, [`DataParallel::with_mean`] evaluates.
//!
//! With [`Overlap::Forward`] `finish` and `step` wait for nothing, and the next forward pass for one bucket after another
//! ([`DataParallel::wait_for`]).
//!
//! Hooks of one stage start in plan order on every rank, and each bucket has a lane, whose operations are numbered: no
//! two can mix. A gradient is never silently left out: a parameter that was not ready at [`DataParallel::finish`] is an
//! error that names it, or counts as zero where [`Unused::Zero`] asks for that.

mod agree;
pub mod autotune;
mod bucket_memory;
mod change;
mod clip;
mod communication_hook;
mod evaluations;
mod fit;
mod groups;
mod hook_spans;
mod hooks;
mod idle;
mod initial;
mod join;
mod loss_scale;
mod mean;
mod options;
mod overflow;
mod pending;
mod plan;
mod precision;
mod programs;
mod queues;
mod rate;
mod replica;
mod replicas;
mod runner;
mod scheduler;
mod shared;
mod stage;
mod state;
mod step;
mod telemetry;
#[cfg(test)]
mod tests;
mod trace;
mod traced;
mod wait_for;
mod widths;

pub use autotune::Autotune;
pub use bucket_memory::BucketMemory;
pub use communication_hook::{CommunicationHook, FrameworkBucket, HookOptions};
pub use groups::OptimizerState;
pub use hooks::{Hooks, Mode};
pub use initial::Initial;
pub use join::Uneven;
pub use loss_scale::LossScale;
pub use mean::{Evaluation, consensus_distance};
pub use options::{Buffers, EngineOptions, Order, Overlap, Unused};
pub use plan::Parameter;
pub use precision::LossScaling;
pub use state::Checkpoint;
pub use telemetry::Telemetry;
pub use trace::Tracing;

use crate::optimizer::LearningRate;
use crate::plugin::AnyAlgorithm;
use crate::plugin::{Metrics, StepInfo};
use crate::record::Claims;
use agree::agree;
use autotune::Tuner;
use fit::{check_algorithm, with_named_optimizer};
use hexagram_logical::{Buffer, Communicator, Element, Error, ReadView, Result};
use hooks::Backward;
use loss_scale::Scaler;
use pending::Pending;
use plan::Plan;
use queues::Queues;
use replica::Replica;
use scheduler::Scheduler;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use traced::Traced;

/// Data-parallel training of one model, on one rank.
///
/// A step is [`forward`](Self::forward), [`begin`](Self::begin), gradients by [`hooks`](Self::hooks),
/// [`finish`](Self::finish) and [`step`](Self::step); at the end [`settle`](Self::settle) or
/// [`average`](Self::average), and in between, to evaluate, [`with_mean`](Self::with_mean). What is not part of the
/// loop stands in groups:
///
/// | group | for |
/// |---|---|
/// | [`initial`](Self::initial) | rank 0's state for all, before the first step |
/// | [`checkpoint`](Self::checkpoint) | state to be saved and put back |
/// | [`loss_scaling`](Self::loss_scaling) | gradients in 16 bits |
/// | [`uneven`](Self::uneven) | ranks that run out of data at different times |
/// | [`trace`](Self::trace) | a recording of all ranks |
/// | [`telemetry`](Self::telemetry) | waiting time, buckets, tuned settings |
///
/// ```
/// use hexagram::logical::{Buffer, Result};
/// use hexagram::algorithms::{DataParallel, Mode};
///
/// /// Trains on batches whose gradients, one for each parameter, `backward` computes.
/// fn train(
///     engine: &mut DataParallel,
///     batches: usize,
///     backward: impl Fn(&DataParallel, usize) -> Result<Vec<Buffer>>,
/// ) -> Result<()> {
///     let hooks = engine.hooks();
///     for batch in 0..batches {
///         engine.forward()?;
///         engine.begin(Mode::Synchronize)?;
///         for (parameter, gradient) in backward(engine, batch)?.iter().enumerate().rev() {
///             hooks.ready(parameter, gradient)?;
///         }
///         engine.finish()?;
///         engine.step()?;
///     }
///     engine.settle()
/// }
/// ```
pub struct DataParallel {
    comm: Communicator,
    algorithm: AnyAlgorithm,
    options: EngineOptions,
    queues: Queues,
    backward: Arc<Mutex<Backward>>,
    replica: RefCell<Replica>,
    /// Buckets that the last step has left on their way.
    pending: RefCell<Pending>,
    scheduler: Scheduler,
    /// Scale of the loss, with [`EngineOptions::loss_scale`].
    scaler: Option<Scaler>,
    present: StepInfo,
    /// Learning rate, as it was told.
    rate: Option<LearningRate>,
    /// True if the hooks before the forward pass were called for this step.
    forwarded: bool,
    /// True if the other ranks know that this step is made.
    announced: bool,
    /// True if the buckets are final and the algorithm has its states.
    started: bool,
    /// True if the algorithm may have something in the background.
    unsettled: bool,
    blocked: Cell<Duration>,
    /// Metrics of the hooks since the last step ended, and those of that step.
    collected: Metrics,
    metrics: BTreeMap<String, f64>,
    /// Search for better settings, with [`EngineOptions::autotune`].
    tuner: Option<Tuner>,
    tracing: Traced,
    /// Folders that have checkpoints of this training.
    pub(crate) kept_in: Vec<PathBuf>,
    /// Folders in which no other training may save meanwhile.
    pub(crate) claims: Claims,
}

impl DataParallel {
    /// Prepares to train a model with these parameters, listed in the order in which the forward pass uses them.
    ///
    /// The ranks of `comm` train together: all ranks of the world, or a group of some, as [`Communicator::split`] and
    /// [`Communicator::group_of`] return it. A rank may train several models, each in a group of its own; it makes their
    /// engines in the order in which the other ranks of these groups make them.
    ///
    /// A collective call of these ranks: it opens a channel for the communication thread, and compares the ranks' models
    /// and options.
    ///
    /// # Errors
    /// [`Error::Usage`] on all ranks if one has other parameters, options or another algorithm; errors of opening a
    /// channel.
    pub fn new(
        comm: &Communicator,
        parameters: Vec<Parameter>,
        algorithm: impl Into<AnyAlgorithm>,
        options: EngineOptions,
    ) -> Result<Self> {
        let algorithm = algorithm.into();
        let options = with_named_optimizer(&algorithm, options)?;
        let plan = agreed_plan(comm, parameters, &algorithm, &options)?;
        let scheduler = Scheduler::start(comm, options.streams, options.hierarchical)?;
        scheduler.watch_overflows(options.skip_overflows)?;
        let queues = Queues::new(&options, comm.world().deadline())?;
        let replica = Replica::new(&plan, &options, &queues, algorithm.needs().parameters)?;
        let gradients = zeroed_gradients(&plan, &queues)?;
        let backward = Backward::new(plan, scheduler.requests(), gradients);
        let learning_rate = options.learning_rate.map(|rate| rate.at(0));
        Ok(DataParallel {
            comm: comm.clone(),
            algorithm,
            backward: Arc::new(Mutex::new(backward)),
            replica: RefCell::new(replica),
            pending: RefCell::default(),
            scheduler,
            scaler: options.loss_scale.map(Scaler::new),
            present: StepInfo { seed: options.seed, learning_rate, ..StepInfo::default() },
            rate: options.learning_rate,
            tuner: Tuner::new(&options),
            options,
            queues,
            forwarded: false,
            announced: false,
            started: false,
            unsettled: false,
            blocked: Cell::default(),
            collected: Metrics::default(),
            metrics: BTreeMap::new(),
            tracing: Traced::default(),
            kept_in: Vec::new(),
            claims: Claims::default(),
        })
    }

    /// Returns the algorithm in use.
    pub fn algorithm(&self) -> &AnyAlgorithm {
        &self.algorithm
    }

    /// Returns the training thread's communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// Returns the calls that the framework makes from inside its backward pass.
    pub fn hooks(&self) -> Hooks {
        Hooks::new(Arc::clone(&self.backward))
    }

    /// Returns true if the engine is to be given the parameters: its optimizer changes them, or the algorithm works on
    /// them.
    pub fn works_on_parameters(&self) -> bool {
        self.replica.borrow().has_parameters()
    }

    /// Tells the algorithm this rank's loss of the step under way, before [`DataParallel::begin`]. Only algorithms that
    /// ask for it, by [`Context::loss`](crate::Context::loss), need it; it holds for one step.
    pub fn set_loss(&mut self, loss: f64) {
        self.present.loss = Some(loss);
    }

    /// Returns the numbers that the algorithm's hooks gave out in the last step, by name: see
    /// [`Context::metric`](crate::Context::metric). They are this rank's own. After a step that was skipped for an
    /// overflow there are none. With [`Overlap::Forward`] a step's are there when the next backward pass has begun.
    pub fn metrics(&self) -> &BTreeMap<String, f64> {
        &self.metrics
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.present.step
    }

    /// Gives the engine a parameter's values, of its own element type: before the first step, where they must be equal
    /// on all ranks, or after a step of the framework's own optimizer. Of a 16-bit parameter the engine has more than
    /// these values: give only what was changed elsewhere.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such parameter, of this type and length, or the engine is at work.
    pub fn set_parameter(&mut self, parameter: usize, values: &Buffer) -> Result<()> {
        self.wait_for(&[parameter])?;
        self.replica.get_mut().set(hooks::lock(&self.backward).plan(), parameter, values)
    }

    /// Returns a parameter's values, as algorithm and optimizer left them, and in its own element type: one of 16 bits
    /// is rounded from the engine's f32. Not while the engine works on them; those that a step has left on their way it
    /// waits for, as [`wait_for`](Self::wait_for) does.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such parameter, or it is not the engine's, or not now; as
    /// [`wait_for`](Self::wait_for).
    pub fn parameter(&self, parameter: usize) -> Result<ReadView> {
        self.wait_for(&[parameter])?;
        self.replica.borrow().get(hooks::lock(&self.backward).plan(), parameter)
    }

    /// Returns a copy of a parameter's values in host memory, `T` being the parameter's element type. Otherwise as
    /// [`parameter`](Self::parameter), which copies nothing.
    ///
    /// # Errors
    /// As [`parameter`](Self::parameter), and [`Error::Usage`] if `T` is another type.
    pub fn values<T: Element>(&self, parameter: usize) -> Result<Vec<T>> {
        let view = self.parameter(parameter)?;
        if view.dtype() != T::DTYPE {
            let what = format!("parameter {parameter} was asked for as {}", T::DTYPE);
            return Err(Error::usage(what, format!("it is {}", view.dtype())));
        }
        let bytes = view.bytes_on_host()?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Ends the job everywhere, and with its reason, if the outcome of this rank's training thread is an error.
    fn checked<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.comm.give_up(error))
    }

    /// Returns the gradient of a parameter, as the algorithm left it, in the parameter's own element type; valid
    /// between [`finish`](DataParallel::finish) and the next [`begin`](DataParallel::begin).
    ///
    /// # Errors
    /// [`Error::Usage`] in between, after an overflow, or if there is no such parameter.
    pub fn gradient(&self, parameter: usize) -> Result<ReadView> {
        let outcome = self.bring_gradient(parameter);
        self.checked(outcome)?;
        hooks::lock(&self.backward).gradient(parameter)
    }
}

/// Returns a gradient buffer for each bucket of the plan.
fn zeroed_gradients(plan: &Plan, queues: &Queues) -> Result<Vec<Buffer>> {
    let buckets = plan.buckets().iter().enumerate();
    buckets.map(|(at, bucket)| Buffer::zeroed_on(queues.of(at), bucket.dtype, bucket.len)).collect()
}

/// Returns the plan of a model that all ranks train alike, and can.
fn agreed_plan(
    comm: &Communicator,
    parameters: Vec<Parameter>,
    algorithm: &AnyAlgorithm,
    options: &EngineOptions,
) -> Result<Plan> {
    let plan = Plan::new(parameters, options, algorithm.needs().buckets);
    agree(comm, plan.parameters(), algorithm, options)?;
    // After that, what is refused is refused on all ranks.
    plan.check()?;
    options.check()?;
    check_algorithm(algorithm, options)?;
    Ok(plan)
}

impl Drop for DataParallel {
    /// Tells the other ranks why this one ends early: they count on it, and what it has in the background would wait
    /// for them.
    fn drop(&mut self) {
        let backward = hooks::lock(&self.backward);
        let early = if std::thread::panicking() {
            Error::usage("the training thread panicked", "see its panic message")
        } else if backward.is_open() {
            backward.mistake().cloned().unwrap_or_else(|| {
                Error::usage("a backward pass was begun and never finished", "call finish after every begin")
            })
        } else if self.unsettled && !self.algorithm.trigram().synchronous {
            let what = format!("the training with {} ended before it was settled", self.algorithm.name());
            Error::usage(what, "call `settle` after the last step, on every rank")
        } else if self.pending.get_mut().is_under_way() {
            let what = "the training ended while its last step was being communicated";
            Error::usage(what, "call `settle` after the last step, on every rank")
        } else {
            return;
        };
        self.comm.give_up(&early);
    }
}
