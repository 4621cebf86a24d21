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
//! A framework's adapter lists the [`Parameter`]s, calls [`Hooks::ready`] from inside the backward pass for each gradient
//! that is complete, and either lets the engine's optimizer step ([`DataParallel::step`]) and reads the parameters, or
//! hands [`DataParallel::gradient`] to the framework's own.
//!
//! Hooks of one stage start in plan order on every rank, and each bucket has a lane, whose operations are numbered: no two
//! can mix. A gradient is never silently left out: a parameter that was not ready at [`DataParallel::finish`] is an error
//! that names it, or counts as zero where [`Unused::Zero`] asks for that.

mod backward;
mod flight;
mod options;
mod plan;
mod replica;
mod scheduler;
#[cfg(test)]
mod tests;

pub use backward::Hooks;
pub use options::{EngineOptions, Order, Unused};
pub use plan::Parameter;

use crate::plugin::AnyAlgorithm;
use crate::plugin::Turn;
use backward::Backward;
use flight::Stage;
use hexagram_logical::physical::memory::ReadView;
use hexagram_logical::{Buffer, Communicator, DType, Error, Result};
use plan::Plan;
use replica::Replica;
use scheduler::{Memory, Scheduler};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a backward pass does with its gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Communicate them, together with what was accumulated before.
    Synchronize,
    /// Add them to what was accumulated before, and communicate nothing: `no_sync`.
    Accumulate,
}

/// Data-parallel training of one model: this rank's side of it.
pub struct DataParallel {
    comm: Communicator,
    algorithm: Arc<dyn AnyAlgorithm>,
    options: EngineOptions,
    backward: Arc<Mutex<Backward>>,
    replica: Replica,
    scheduler: Scheduler,
    turn: Turn,
    /// Whether the hooks before the forward pass were called for this step.
    forwarded: bool,
    /// Whether the buckets are final and the algorithm has its states.
    started: bool,
    blocked: Duration,
}

impl DataParallel {
    /// Prepares to train a model with these parameters, listed in the order in which the forward pass uses them.
    ///
    /// A collective call: it opens a channel for the communication thread, and compares the ranks' models and options.
    ///
    /// # Errors
    /// [`Error::Usage`] on all ranks if one has other parameters, options or another algorithm; errors of joining.
    pub fn new(
        comm: &Communicator,
        parameters: Vec<Parameter>,
        algorithm: Arc<dyn AnyAlgorithm>,
        options: EngineOptions,
    ) -> Result<Self> {
        let plan = Plan::new(parameters, &options, algorithm.needs().buckets);
        plan.agree(comm, &format!("{algorithm:?}"), &options)?;
        let channel = comm.world().fresh_channel()?;
        let scheduler = Scheduler::start(comm, channel, options.streams.max(1), options.hierarchical)?;
        let buffers: Result<Vec<_>> =
            plan.buckets().iter().map(|bucket| Buffer::zeroed(bucket.dtype, bucket.len)).collect();
        let replica = Replica::new(&plan, &options, algorithm.needs().parameters)?;
        let backward = Backward::new(plan, options.unused, scheduler.port(), buffers?);
        let backward = Arc::new(Mutex::new(backward));
        let comm = comm.clone();
        let (turn, forwarded, started) = (Turn::default(), false, false);
        let blocked = Duration::ZERO;
        Ok(DataParallel {
            comm,
            algorithm,
            options,
            backward,
            replica,
            scheduler,
            turn,
            forwarded,
            started,
            blocked,
        })
    }

    /// The algorithm in use.
    pub fn algorithm(&self) -> &dyn AnyAlgorithm {
        &*self.algorithm
    }

    /// The training thread's communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// What the framework calls from inside its backward pass.
    pub fn hooks(&self) -> Hooks {
        Hooks::new(Arc::clone(&self.backward))
    }

    /// Whether the engine is to be given the parameters: its optimizer changes them, or the algorithm works on them.
    pub fn works_on_parameters(&self) -> bool {
        self.replica.has_parameters()
    }

    /// The learning rate γ of the steps from here on, the same on every rank.
    pub fn set_learning_rate(&mut self, rate: f64) {
        self.turn.learning_rate = Some(rate);
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.turn.step
    }

    /// Gives the engine a parameter's values: before the first step, where they must be equal on all ranks, or after a
    /// step of the framework's own optimizer.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such parameter, of this type and length, or the engine is at work.
    pub fn set_parameter(&mut self, parameter: usize, values: &Buffer) -> Result<()> {
        self.replica.set(backward::lock(&self.backward).plan(), parameter, values)
    }

    /// A parameter's values, as algorithm and optimizer left them; not while the engine works on them.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such parameter, or it is not the engine's, or not now.
    pub fn parameter(&self, parameter: usize) -> Result<ReadView> {
        self.replica.get(backward::lock(&self.backward).plan(), parameter)
    }

    /// A training forward pass begins: algorithms that communicate parameters do it beside that pass. Whoever does not
    /// call it loses the overlap; [`DataParallel::begin`] makes up for it.
    ///
    /// # Errors
    /// What ended the communication thread, if it has failed.
    pub fn forward(&mut self) -> Result<()> {
        if self.forwarded || !self.started {
            return Ok(());
        }
        let outcome = self.hand(Stage::Forward, false).map(drop);
        self.forwarded = true;
        self.checked(outcome)
    }

    /// Begins a backward pass.
    ///
    /// # Errors
    /// [`Error::Usage`] if the last one was not finished: its gradients would be lost on this rank only.
    pub fn begin(&mut self, mode: Mode) -> Result<()> {
        let outcome = self.begun(mode);
        self.checked(outcome)
    }

    fn begun(&mut self, mode: Mode) -> Result<()> {
        if mode == Mode::Synchronize {
            if self.options.order == Order::Listed {
                self.start()?;
            }
            self.forward()?;
        }
        let mut backward = backward::lock(&self.backward);
        backward.set_turn(self.turn);
        backward.begin(mode)
    }

    /// Ends a backward pass: waits until every bucket was communicated.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the parameters without gradient, [`Error::PeerFailed`] and others from the
    /// communication. After an error no rank can go on.
    pub fn finish(&mut self) -> Result<()> {
        let outcome = self.finished();
        self.checked(outcome)
    }

    fn finished(&mut self) -> Result<()> {
        let closed = backward::lock(&self.backward).close()?;
        let Some(mut sent) = closed else { return Ok(()) };
        if !self.started {
            self.fix_order()?;
            self.forward()?;
            sent = backward::lock(&self.backward).send_all()?;
        }
        self.wait_for(sent)?;
        if let Some(limit) = self.options.clip_norm {
            self.replica.clip(&backward::lock(&self.backward).buffers()?, limit)?;
        }
        Ok(())
    }

    /// Buckets are from here on filled in the order in which the first pass of rank 0 completed the gradients.
    fn fix_order(&mut self) -> Result<()> {
        let plan = backward::lock(&self.backward).plan().clone();
        let Some(order) = backward::lock(&self.backward).observed() else { return Ok(()) };
        let mut order: Vec<i64> = order.into_iter().map(|index| index as i64).collect();
        self.comm.blocking().broadcast(&mut order, 0)?;
        let order: Vec<usize> = order.into_iter().map(|index| index as usize).collect();
        self.install(plan.reordered(&order, &self.options, self.algorithm.needs().buckets))
    }

    /// Makes the algorithm's states before the first pass, with buckets in the order of [`Order::Listed`]. A collective
    /// call, after all parameters were set. Otherwise the first pass does it.
    ///
    /// # Errors
    /// Those of the algorithm's [`state`](crate::Algorithm::state).
    pub fn prepare(&mut self) -> Result<()> {
        let outcome = self.start();
        self.checked(outcome)
    }

    fn start(&mut self) -> Result<()> {
        if self.started {
            return Ok(());
        }
        let plan = backward::lock(&self.backward).plan().clone();
        self.install(plan)
    }

    /// Goes on with these buckets, moves what is there into them, and has the algorithm make its states.
    fn install(&mut self, plan: Plan) -> Result<()> {
        let dtypes = plan.buckets().iter().map(|bucket| bucket.dtype);
        let buckets: Vec<_> = dtypes.zip(plan.tensors()).collect();
        let algorithm = Arc::clone(&self.algorithm);
        let made = self.scheduler.call(move |flight| flight.install(algorithm, buckets))?;
        let (gradients, parameters): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        let mut backward = backward::lock(&self.backward);
        self.replica.relocate(backward.plan(), &plan, parameters)?;
        backward.install(plan, gradients)?;
        drop(backward);
        self.started = true;
        self.run(Stage::Start)
    }

    /// Switches to another algorithm, from the next step on. A collective call, between steps: the old one's states are
    /// gone, parameters and the optimizer's state stay.
    ///
    /// # Errors
    /// [`Error::Usage`] if ranks switch to different algorithms; errors of the communication.
    pub fn switch(&mut self, algorithm: Arc<dyn AnyAlgorithm>) -> Result<()> {
        let outcome = self.switched(algorithm);
        self.checked(outcome)
    }

    fn switched(&mut self, algorithm: Arc<dyn AnyAlgorithm>) -> Result<()> {
        let plan = backward::lock(&self.backward).plan().clone();
        plan.agree(&self.comm, &format!("{algorithm:?}"), &self.options)?;
        if algorithm.needs().parameters && !self.replica.has_parameters() {
            let what = format!("{} works on parameters, which the engine does not have", algorithm.name());
            return Err(Error::usage(
                what,
                "let the engine run the optimizer, or start with such an algorithm",
            ));
        }
        self.settle()?;
        self.algorithm = algorithm;
        if !self.started {
            return Ok(());
        }
        let plan = plan.reordered(&plan.order(), &self.options, self.algorithm.needs().buckets);
        self.install(plan)
    }

    /// Brings to an end what the algorithm has under way in the background. A collective call, between steps, that ranks
    /// may make after different numbers of them; training goes on afterwards as if nothing had been.
    ///
    /// # Errors
    /// Errors of the communication.
    pub fn settle(&mut self) -> Result<()> {
        if !self.started || !self.algorithm.needs().parameters {
            return Ok(());
        }
        let outcome = self.run(Stage::Settle);
        self.checked(outcome)
    }

    /// One step of the engine's optimizer with the gradients of the last pass, and the algorithm's part after it.
    ///
    /// # Errors
    /// [`Error::Usage`] without an optimizer, a learning rate, or gradients; errors of the communication.
    pub fn step(&mut self) -> Result<()> {
        let outcome = self.optimize().and_then(|()| self.stepped());
        self.checked(outcome)
    }

    fn optimize(&mut self) -> Result<()> {
        let Some(optimizer) = self.options.optimizer.clone() else {
            let remedy = "set EngineOptions::optimizer, or step with the framework's and call stepped";
            return Err(Error::usage("the engine has no optimizer", remedy));
        };
        let backward = backward::lock(&self.backward);
        if !backward.has_results() {
            return Err(Error::usage("there are no synchronized gradients", "call finish first"));
        }
        self.replica.step(&*optimizer, self.turn, &backward.buffers()?)
    }

    /// The framework's own optimizer has stepped; where the engine works on parameters, they were set. The algorithm
    /// does its part after it.
    ///
    /// # Errors
    /// Errors of the communication.
    pub fn stepped(&mut self) -> Result<()> {
        if self.algorithm.needs().parameters {
            self.run(Stage::Step)?;
        }
        backward::lock(&self.backward).used();
        self.turn.step += 1;
        self.forwarded = false;
        Ok(())
    }

    /// Runs a hook of all buckets, between backward passes, and waits for it.
    fn run(&mut self, stage: Stage) -> Result<()> {
        let handed = self.hand(stage, true)?;
        self.wait_for(handed)
    }

    /// Hands all buckets' parameters over, with or without their gradients.
    fn hand(&mut self, stage: Stage, gradients: bool) -> Result<usize> {
        let mut backward = backward::lock(&self.backward);
        let buckets = backward.plan().buckets().len();
        if stage == Stage::Forward && !self.algorithm.needs().parameters {
            return Ok(0);
        }
        for bucket in 0..buckets {
            let memory = Memory {
                gradients: if gradients { Some(backward.take(bucket)?) } else { None },
                parameters: self.replica.lend(bucket, self.algorithm.needs().parameters)?,
            };
            self.scheduler.port().send(flight::Order::Hook { stage, bucket, memory, turn: self.turn })?;
        }
        Ok(buckets)
    }

    fn wait_for(&mut self, buckets: usize) -> Result<()> {
        let started = Instant::now();
        for _ in 0..buckets {
            let (bucket, memory) = self.scheduler.wait()?;
            if let Some(gradients) = memory.gradients {
                backward::lock(&self.backward).take_back(bucket, gradients);
            }
            self.replica.take_back(bucket, memory.parameters);
        }
        self.blocked += started.elapsed();
        Ok(())
    }

    /// An error of this rank's training thread ends the job everywhere, and with its reason.
    fn checked<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.comm.give_up(error))
    }

    /// The gradient of a parameter, as the algorithm left it; valid between `finish` and the next `begin`.
    ///
    /// # Errors
    /// [`Error::Usage`] in between, or if there is no such parameter.
    pub fn gradient(&self, parameter: usize) -> Result<ReadView> {
        backward::lock(&self.backward).gradient(parameter)
    }

    /// Makes a tensor of the model, parameter or not, equal to rank 0's. Call it for all of them before the first step.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn broadcast(&self, tensor: &mut Buffer) -> Result<()> {
        self.comm.block_on(self.comm.broadcast(tensor, 0))
    }

    /// How long the training thread has waited for communication so far.
    pub fn blocked(&self) -> Duration {
        self.blocked
    }

    /// Element types and lengths of the buckets: the plan, for those who print or check it.
    pub fn buckets(&self) -> Vec<(DType, usize)> {
        backward::lock(&self.backward).buckets()
    }
}

impl Drop for DataParallel {
    fn drop(&mut self) {
        if backward::lock(&self.backward).is_open() {
            let what = "a backward pass was begun and never finished";
            self.comm.give_up(&Error::usage(what, "call finish after every begin"));
        }
    }
}
