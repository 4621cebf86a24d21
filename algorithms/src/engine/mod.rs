//! The engine: it runs any [`Algorithm`](crate::Algorithm) during the training loop of any framework.
//!
//! ```text
//! training thread                       communication thread
//! ---------------                       --------------------
//! forward                          ──►  hooks before_forward
//! begin
//!   backward … ready(p) … ready(q) ──►  a bucket is complete: hook gradients_ready, in plan order,
//!   backward continues                  several in flight, each in its own lane
//! finish: wait for the last bucket ◄──  hooks after_backward; bucket done
//! step: optimizer                  ──►  hooks after_step
//!       wait                       ◄──  bucket done
//! ```
//!
//! The adapter of a framework lists the [`Parameter`]s, and calls [`Hooks::ready`] during the backward pass for each
//! complete gradient. Then it either calls [`DataParallel::step`] for a step of the engine optimizer and reads the
//! parameters, or passes [`DataParallel::gradient`] to an optimizer of the framework. It calls
//! [`Initial::broadcast_state`] before the first step, [`DataParallel::synchronize_buffers`] before each forward pass,
//! and [`DataParallel::settle`] or [`DataParallel::average`] after the last step; [`DataParallel::with_mean`] evaluates
//! in between.
//!
//! With [`Overlap::Forward`], `finish` and `step` do not wait; the next forward pass waits for one bucket after another
//! ([`DataParallel::wait_for`]).
//!
//! Hooks of one stage start in plan order on every rank, and each bucket has a lane with numbered operations, so that
//! two buckets cannot mix. A gradient is never left out silently: a parameter that was not ready at
//! [`DataParallel::finish`] is an error with its name, or counts as zero with [`Unused::Zero`].
//!
//! | file | content |
//! |---|---|
//! | `hooks/` | the calls of the framework during its backward pass |
//! | `runner/` | the communication thread, and the training thread's handle of it |
//! | `step/` | forward pass, backward pass, optimizer |
//! | `start/` | agreement of the ranks, their first state, and changes of buckets and algorithm |
//! | `plan.rs`, `replica/` | the bucket and range of each parameter; the parameters in that memory |
//! | `precision/` | 16-bit parameters, the scale of the loss, overflows |
//! | `state.rs`, `captured.rs` | saving and restoring; the copy that is saved |
//! | `autotune/`, `trace/` | settings found by trials; recordings and figures |
//! | `communication_hook.rs` | algorithms under a framework that makes the step itself |
//! | `options.rs` | options of the engine |

pub mod autotune;
mod captured;
mod communication_hook;
mod hooks;
mod options;
mod plan;
mod precision;
mod replica;
mod runner;
mod start;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod trace;

pub use autotune::Autotune;
pub use communication_hook::{CommunicationHook, FrameworkBucket, HookOptions};
pub use hooks::{Hooks, Mode};
pub use options::{Buffers, EngineOptions, Order, Overlap, Unused};
pub use plan::Parameter;
pub use precision::{LossScale, LossScaling};
pub use replica::{BucketMemory, Evaluation, OptimizerState, consensus_distance};
pub use start::Initial;
pub(crate) use state::BEGINS_ANEW;
pub use state::Checkpoint;
pub use step::Uneven;
pub use trace::{Telemetry, Tracing};

use crate::optimizer::LearningRate;
use crate::plugin::{AnyAlgorithm, MetricsCollector, StepInfo};
use crate::record::Claims;
use autotune::Tuner;
pub(crate) use captured::CapturedState;
use hexagram_logical::{Buffer, Communicator, Element, Error, ReadView, Result};
use hooks::Backward;
use plan::ModelPlan;
use precision::Scaler;
use replica::{Queues, ReplicaBuckets};
use runner::Scheduler;
use start::{agree, check_algorithm, with_named_optimizer};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use step::PendingBuckets;
use trace::Traced;

/// Data-parallel training of one model, on one rank.
///
/// A step is [`forward`](Self::forward), [`begin`](Self::begin), gradients by [`hooks`](Self::hooks),
/// [`finish`](Self::finish) and [`step`](Self::step); at the end [`settle`](Self::settle) or
/// [`average`](Self::average), and in between, to evaluate, [`with_mean`](Self::with_mean). The other methods are in
/// groups:
///
/// | group | purpose |
/// |---|---|
/// | [`initial`](Self::initial) | the state of rank 0 for all ranks, before the first step |
/// | [`checkpoint`](Self::checkpoint) | saving and restoring the state |
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
    replica: RefCell<ReplicaBuckets>,
    /// Buckets of the last step that are still in progress.
    pending: RefCell<PendingBuckets>,
    scheduler: Scheduler,
    /// Scale of the loss, with [`EngineOptions::loss_scale`].
    scaler: Option<Scaler>,
    present: StepInfo,
    /// Learning rate, as last set.
    rate: Option<LearningRate>,
    /// True if the hooks before the forward pass have been called for this step.
    forwarded: bool,
    /// True if the other ranks have been notified of this step.
    announced: bool,
    /// True if the buckets are final and the algorithm has its states.
    started: bool,
    /// True if the algorithm may have background work.
    unsettled: bool,
    blocked: Cell<Duration>,
    /// Metrics of the hooks since the last step ended, and those of that step.
    collected: MetricsCollector,
    metrics: BTreeMap<String, f64>,
    /// Search for better settings, with [`EngineOptions::autotune`].
    tuner: Option<Tuner>,
    tracing: Traced,
    /// Facts of a checkpoint that stay until the algorithm is switched; empty before the first.
    fixed_facts: OnceCell<Arc<BTreeMap<String, String>>>,
    /// Folders that contain checkpoints of this training.
    pub(crate) kept_in: RefCell<Vec<PathBuf>>,
    /// Folders in which no other training may save.
    pub(crate) claims: Claims,
}

impl DataParallel {
    /// Prepares the training of a model with these parameters, listed in the order in which the forward pass uses them.
    ///
    /// The ranks of `comm` train together: all ranks of the world, or a group from [`Communicator::split`] or
    /// [`Communicator::group_of`]. A rank may train several models, each in its own group; all ranks of these groups
    /// must create the engines in the same order.
    ///
    /// A collective call of these ranks: it opens a channel for the communication thread, and compares the models and
    /// options of the ranks.
    ///
    /// # Errors
    /// [`Error::Usage`] on all ranks if parameters, options or algorithm differ between ranks; errors of opening a
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
        let replica = ReplicaBuckets::new(&plan, &options, &queues, algorithm.needs().parameters)?;
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
            collected: MetricsCollector::default(),
            metrics: BTreeMap::new(),
            tracing: Traced::default(),
            fixed_facts: OnceCell::new(),
            kept_in: RefCell::default(),
            claims: Claims::default(),
        })
    }

    /// Returns the algorithm in use.
    pub fn algorithm(&self) -> &AnyAlgorithm {
        &self.algorithm
    }

    /// Returns true if the options request hierarchical communication.
    pub(crate) fn is_hierarchical(&self) -> bool {
        self.options.hierarchical
    }

    /// Returns the communicator of the training thread.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// Returns the calls that the framework makes during its backward pass.
    pub fn hooks(&self) -> Hooks {
        Hooks::new(Arc::clone(&self.backward))
    }

    /// Returns true if the engine needs the parameters: its optimizer changes them, or the algorithm works on them.
    pub fn works_on_parameters(&self) -> bool {
        self.replica.borrow().has_parameters()
    }

    /// Passes the loss of the current step on this rank to the algorithm, before [`DataParallel::begin`]. Only
    /// algorithms that call [`Context::loss`](crate::Context::loss) need it; it is valid for one step.
    pub fn set_loss(&mut self, loss: f64) {
        self.present.loss = Some(loss);
    }

    /// Returns the metrics of the algorithm hooks in the last step, by name: see
    /// [`Context::metric`](crate::Context::metric). They are those of this rank; empty after a step that was skipped
    /// for an overflow. With [`Overlap::Forward`], the metrics of a step are available when the next backward pass has
    /// begun.
    pub fn metrics(&self) -> &BTreeMap<String, f64> {
        &self.metrics
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.present.step
    }

    /// Sets the values of a parameter in the engine, in the element type of the parameter: before the first step, where
    /// they must be equal on all ranks, or after a step of an optimizer of the framework. The engine keeps 16-bit
    /// parameters in f32: set only those that were changed elsewhere.
    ///
    /// # Errors
    /// [`Error::Usage`] for an index out of range, for another type or length, or while the engine works on the
    /// parameters.
    pub fn set_parameter(&mut self, parameter: usize, values: &Buffer) -> Result<()> {
        self.wait_for(&[parameter])?;
        self.replica.get_mut().set(hooks::lock(&self.backward).plan(), parameter, values)
    }

    /// Returns the values of a parameter after algorithm and optimizer, in its own element type: the engine's f32 is
    /// rounded for one of 16 bits. Not available while the engine works on them; for parameters that a step has left in
    /// progress, it waits like [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// [`Error::Usage`] for an index out of range, if the engine does not have the parameters, or works on them; as
    /// [`wait_for`](Self::wait_for).
    pub fn parameter(&self, parameter: usize) -> Result<ReadView> {
        self.wait_for(&[parameter])?;
        self.replica.borrow().get(hooks::lock(&self.backward).plan(), parameter)
    }

    /// Returns a copy of the values of a parameter in host memory, `T` being the element type of the parameter. Like
    /// [`parameter`](Self::parameter), which copies nothing.
    ///
    /// # Errors
    /// As [`parameter`](Self::parameter), and [`Error::Usage`] if `T` is a different type.
    pub fn values<T: Element>(&self, parameter: usize) -> Result<Vec<T>> {
        let view = self.parameter(parameter)?;
        if view.dtype() != T::DTYPE {
            let what = format!("parameter {parameter} was requested as {}", T::DTYPE);
            return Err(Error::usage(what, format!("it is {}", view.dtype())));
        }
        let bytes = view.bytes_on_host()?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Ends the job everywhere, with the reason, if the outcome on the training thread of this rank is an error.
    fn checked<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.comm.give_up(error))
    }

    /// Returns the gradient of a parameter, as the algorithm left it, in the element type of the parameter; valid
    /// between [`finish`](DataParallel::finish) and the next [`begin`](DataParallel::begin).
    ///
    /// # Errors
    /// [`Error::Usage`] at other times, after an overflow, or for an index out of range.
    pub fn gradient(&self, parameter: usize) -> Result<ReadView> {
        let outcome = self.bring_gradient(parameter);
        self.checked(outcome)?;
        hooks::lock(&self.backward).gradient(parameter)
    }
}

/// Returns a gradient buffer for each bucket of the plan.
fn zeroed_gradients(plan: &ModelPlan, queues: &Queues) -> Result<Vec<Buffer>> {
    let buckets = plan.buckets().iter().enumerate();
    buckets.map(|(at, bucket)| Buffer::zeroed_on(queues.of(at), bucket.dtype, bucket.len)).collect()
}

/// Returns the plan of a model, after a check that all ranks agree on it and can train it.
fn agreed_plan(
    comm: &Communicator,
    parameters: Vec<Parameter>,
    algorithm: &AnyAlgorithm,
    options: &EngineOptions,
) -> Result<ModelPlan> {
    let plan = ModelPlan::new(parameters, options, algorithm.needs().buckets);
    agree(comm, plan.parameters(), algorithm, options)?;
    // From here on, an error is an error on all ranks.
    plan.check()?;
    options.check()?;
    check_algorithm(algorithm, options)?;
    Ok(plan)
}

impl Drop for DataParallel {
    /// Notifies the other ranks why this one ends early: they expect it to participate, and its background work would
    /// wait for them.
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
