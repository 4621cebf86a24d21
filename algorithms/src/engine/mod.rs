//! The engine: it runs any [`Algorithm`](crate::Algorithm) beside a backward pass, whatever the framework.
//!
//! ```text
//! training thread                       communication thread
//! ---------------                       --------------------
//! begin
//!   backward … ready(p) … ready(q) ──►  a bucket is complete: start its hook when its turn comes,
//!   backward goes on                    several hooks in flight, each in a lane of its own
//! finish: wait for the last bucket ◄──  bucket done
//! optimizer step
//! ```
//!
//! A framework's adapter does three things: it lists the [`Parameter`]s, calls [`Hooks::ready`] from inside the backward
//! pass for each gradient that is complete, and hands [`DataParallel::gradient`] to the optimizer.
//!
//! Buckets start in plan order on every rank, and bucket b of step s is operation s of lane b: no two can mix. A gradient
//! is never silently left out: a parameter that was not ready at [`DataParallel::finish`] is an error that names it, or
//! counts as zero where [`Unused::Zero`] asks for that.

mod backward;
mod plan;
mod scheduler;
#[cfg(test)]
mod tests;

pub use backward::Hooks;
pub use plan::Parameter;

use crate::algorithm::AnyAlgorithm;
use backward::Backward;
use hexagram_logical::physical::memory::ReadView;
use hexagram_logical::{Buffer, Communicator, DType, Error, Result};
use plan::Plan;
use scheduler::Scheduler;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What to do with a parameter that got no gradient in a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unused {
    /// Refuse, naming it, on every rank.
    #[default]
    Error,
    /// Count this rank's gradient as zero. The other ranks' gradients still count.
    Zero,
}

/// How the engine works. All ranks must use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Largest bucket, in bytes; a larger parameter has a bucket of its own.
    pub bucket_bytes: usize,
    /// Largest first bucket, in bytes: small, so that communication begins early.
    pub first_bucket_bytes: usize,
    /// What to do with parameters without gradient.
    pub unused: Unused,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { bucket_bytes: 10 << 20, first_bucket_bytes: 1 << 20, unused: Unused::Error }
    }
}

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
    backward: Arc<Mutex<Backward>>,
    scheduler: Scheduler,
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
        let plan = Plan::new(parameters, &options);
        plan.agree(comm, algorithm.name(), &options)?;
        let channel = comm.world().fresh_channel()?;
        let (scheduler, buffers) = Scheduler::start(comm, channel, Arc::clone(&algorithm), &plan)?;
        let backward = Backward::new(plan, options.unused, scheduler.port(), buffers);
        let backward = Arc::new(Mutex::new(backward));
        Ok(DataParallel { comm: comm.clone(), algorithm, backward, scheduler, blocked: Duration::ZERO })
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

    /// Begins a backward pass.
    ///
    /// # Errors
    /// [`Error::Usage`] if the last one was not finished: its gradients would be lost on this rank only.
    pub fn begin(&mut self, mode: Mode) -> Result<()> {
        let outcome = backward::lock(&self.backward).begin(mode);
        self.checked(outcome)
    }

    /// Ends a backward pass: waits until every bucket was communicated.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the parameters without gradient, [`Error::PeerFailed`] and others from the
    /// communication. After an error no rank can go on.
    pub fn finish(&mut self) -> Result<()> {
        let sent = backward::lock(&self.backward).close();
        let sent = self.checked(sent)?;
        let started = Instant::now();
        for _ in 0..sent {
            let done = self.scheduler.wait();
            let (bucket, buffer) = self.checked(done)?;
            backward::lock(&self.backward).take_back(bucket, buffer);
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

    /// Number of buckets, element types and lengths: the plan, for those who print or check it.
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
