//! An algorithm under a framework that cuts buckets and makes the step itself, such as PyTorch's
//! `DistributedDataParallel` with a communication hook: only the gradient hooks run, on the memory of the framework.
//!
//! ```text
//! pass by pass     the framework passes bucket 0, 1, …, each as soon as its gradients are complete
//! new buckets      wait for the last of their pass; then all states are created, and hooks run
//! buckets as in    hooks run immediately, during the rest of the backward pass
//! two passes before
//! last bucket      the call that passes it waits for the hooks of all
//! ```
//!
//! DDP recreates its buckets after its first pass. So the states created in that pass are created again in the second,
//! and communication overlaps with the backward pass once two passes in a row had the same buckets.

mod state;

use super::EngineOptions;
use super::runner::{BucketTransfer, HookStage, RunnerRequest, Scheduler};
use super::start::{agree, check_algorithm, check_is_free};
use crate::plugin::{AnyAlgorithm, MetricsCollector, StepInfo, Tensor};
use hexagram_logical::{Buffer, Communicator, DType, Error, Result};
use state::LoadedState;
use std::sync::Arc;

/// Options of a [`CommunicationHook`]. All ranks must use the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HookOptions {
    /// Seed of the random numbers of the algorithm. Default: 0.
    pub seed: u64,
    /// Maximum number of buckets that are communicated at the same time, 1 to 65535. Default: no limit, [`usize::MAX`].
    pub streams: usize,
    /// True to communicate within each host first, and then between hosts. Default: false.
    pub hierarchical: bool,
    /// True to treat gradients that are not finite as an overflow, like [`EngineOptions::skip_overflows`]. Default:
    /// false.
    pub skip_overflows: bool,
    /// Learning rate γ of the first steps, for algorithms that need it; [`CommunicationHook::set_learning_rate`] sets
    /// later ones. Default: none.
    pub learning_rate: Option<f64>,
}

impl Default for HookOptions {
    fn default() -> Self {
        HookOptions {
            seed: 0,
            streams: usize::MAX,
            hierarchical: false,
            skip_overflows: false,
            learning_rate: None,
        }
    }
}

/// Bucket of a framework, whose gradients are complete.
pub struct FrameworkBucket {
    /// Index of the bucket: in every pass, buckets arrive as 0, 1, and so on.
    pub index: usize,
    /// True for the last bucket of the pass.
    pub is_last: bool,
    /// Gradients. The algorithm replaces them with its result.
    pub gradients: Buffer,
    /// Names and shapes of the tensors of the bucket, in the order of memory, without gaps.
    pub tensors: Vec<(Arc<str>, Vec<usize>)>,
}

/// Element type and tensors of a bucket.
type BucketTensors = (DType, Arc<[Tensor]>);

/// Algorithm that works on a framework's buckets of gradients.
///
/// Can move between threads. The state of the algorithm, such as an error feedback, belongs to the index of the bucket.
pub struct CommunicationHook {
    scheduler: Scheduler,
    algorithm: AnyAlgorithm,
    present: StepInfo,
    /// Buckets with states.
    layout: Vec<BucketTensors>,
    /// True if two consecutive passes had these buckets.
    is_settled: bool,
    /// Buckets of the current pass so far.
    arrived: Vec<BucketTensors>,
    /// Gradients of the buckets whose hooks wait for the last bucket.
    held: Vec<Buffer>,
    /// This rank, and the number of ranks.
    ranks: (usize, usize),
    /// State to load, until its buckets arrive.
    loaded: Option<LoadedState>,
}

impl CommunicationHook {
    /// Creates the hook of an algorithm. A collective call: it opens a channel for the communication thread, and
    /// compares the algorithms and options of the ranks.
    ///
    /// # Errors
    /// [`Error::Usage`] on all ranks for an algorithm that works on parameters or names its optimizer (use the engine
    /// for it), or if options differ between ranks; errors of joining.
    pub fn new(
        comm: &Communicator,
        algorithm: impl Into<AnyAlgorithm>,
        options: HookOptions,
    ) -> Result<Self> {
        let algorithm = algorithm.into();
        let HookOptions { seed, streams, hierarchical, skip_overflows, learning_rate } = options;
        let rate = learning_rate.map(Into::into);
        let engine = EngineOptions {
            seed,
            streams,
            hierarchical,
            skip_overflows,
            learning_rate: rate,
            ..EngineOptions::default()
        };
        agree(comm, &[], &algorithm, &engine)?;
        engine.check()?;
        check_works_on_gradients(&algorithm)?;
        check_algorithm(&algorithm, &engine)?;
        if algorithm.needs_learning_rate() && learning_rate.is_none() {
            let what = format!("{} asks for the learning rate of its steps", algorithm.name());
            return Err(Error::usage(what, "set the option `learning_rate` of the hook"));
        }
        let scheduler = Scheduler::start(comm, streams, hierarchical)?;
        scheduler.watch_overflows(skip_overflows)?;
        Ok(CommunicationHook {
            scheduler,
            algorithm,
            present: StepInfo { seed, learning_rate, ..StepInfo::default() },
            layout: Vec::new(),
            is_settled: false,
            arrived: Vec::new(),
            held: Vec::new(),
            ranks: (comm.rank(), comm.size()),
            loaded: None,
        })
    }

    /// Returns the algorithm in use.
    pub fn algorithm(&self) -> &AnyAlgorithm {
        &self.algorithm
    }

    /// Sets the learning rate γ of later steps, the same on all ranks, for algorithms that need it.
    pub fn set_learning_rate(&mut self, rate: f64) {
        self.present.learning_rate = Some(rate);
    }

    /// Returns the number of completed passes.
    pub fn passes(&self) -> u64 {
        self.present.step
    }

    /// Takes a bucket. The call with the last bucket of a pass waits until the hooks of all buckets are done; then
    /// the algorithm has replaced their gradients. Returns true from that call.
    ///
    /// # Errors
    /// [`Error::Usage`] for a bucket out of order, tensors that do not cover it, or buckets that differ from those of
    /// earlier passes, except the first; the error that ended the communication thread. Ranks cannot continue after an
    /// error.
    pub fn ready(&mut self, bucket: FrameworkBucket) -> Result<bool> {
        let outcome = self.take(bucket);
        outcome.inspect_err(|error| {
            let told = error.clone();
            // A thread that has ended has notified the others itself.
            let _ = self.scheduler.call(async move |runner| {
                runner.give_up(&told);
                Ok(())
            });
        })
    }

    fn take(&mut self, bucket: FrameworkBucket) -> Result<bool> {
        let FrameworkBucket { index, is_last, gradients, tensors } = bucket;
        if index != self.arrived.len() {
            let what = format!("bucket {index} arrived where bucket {} was next", self.arrived.len());
            return Err(Error::usage(what, "pass buckets in order, starting at 0 in each pass"));
        }
        let layout = (gradients.dtype(), placed(index, &gradients, tensors)?);
        let is_known = self.layout.get(index) == Some(&layout);
        if index == 0 {
            self.is_settled &= is_known;
        }
        self.arrived.push(layout);
        if !self.is_settled {
            self.held.push(gradients);
        } else if is_known && is_last == (index + 1 == self.layout.len()) {
            self.send(HookStage::Gradients, index, gradients)?;
        } else {
            let what =
                format!("bucket {index} differs from that of the passes before, and those before it do not");
            return Err(Error::usage(what, "create a separate hook for each model"));
        }
        if is_last {
            self.end_pass()?;
        }
        Ok(is_last)
    }

    /// Waits for the hooks of all buckets; creates the states first where buckets are new.
    fn end_pass(&mut self) -> Result<()> {
        let arrived = std::mem::take(&mut self.arrived);
        if !self.is_settled {
            self.is_settled = arrived == self.layout;
            if self.is_settled {
                self.check_loaded()?;
            } else {
                self.layout = arrived;
                self.make_states()?;
                self.take_loaded()?;
            }
            for (index, gradients) in std::mem::take(&mut self.held).into_iter().enumerate() {
                self.send(HookStage::Gradients, index, gradients)?;
            }
        }
        let mut overflowed = false;
        for _ in 0..self.layout.len() {
            let done = self.scheduler.wait()?.1;
            overflowed |= done.overflowed;
            // Only now it is known whether the device refused an input.
            done.gradients.map_or(Ok(()), |gradients| gradients.queue().check())?;
        }
        // The gradient scaler of the framework skips its step.
        self.present.step += u64::from(!overflowed);
        Ok(())
    }

    fn make_states(&mut self) -> Result<()> {
        let algorithm = self.algorithm_of_pass();
        let tensors: Vec<Arc<[Tensor]>> =
            self.layout.iter().map(|(_, tensors)| Arc::clone(tensors)).collect();
        self.scheduler.call(async move |runner| {
            runner.open_lanes(algorithm, tensors.into_iter(), &MetricsCollector::default());
            Ok(())
        })?;
        self.present.begun = self.present.step;
        for (index, gradients) in std::mem::take(&mut self.held).into_iter().enumerate() {
            self.send(HookStage::Start, index, gradients)?;
        }
        let mut made: Vec<Option<Buffer>> = self.layout.iter().map(|_| None).collect();
        for _ in 0..made.len() {
            let (index, memory) = self.scheduler.wait()?;
            made[index] = memory.gradients;
        }
        self.held = made.into_iter().flatten().collect();
        Ok(())
    }

    fn send(&self, stage: HookStage, bucket: usize, gradients: Buffer) -> Result<()> {
        let memory = BucketTransfer { gradients: Some(gradients), ..BucketTransfer::default() };
        self.scheduler.requests().send(RunnerRequest::Hook { stage, bucket, memory, present: self.present })
    }
}

/// Returns the places of the tensors in a bucket.
fn placed(index: usize, gradients: &Buffer, tensors: Vec<(Arc<str>, Vec<usize>)>) -> Result<Arc<[Tensor]>> {
    let mut end = 0;
    let mut placed = Vec::with_capacity(tensors.len());
    for (name, shape) in tensors {
        let start = end;
        end += shape.iter().product::<usize>();
        placed.push(Tensor { name, shape, elements: start..end });
    }
    if end == gradients.len() && gradients.dtype().is_float() {
        return Ok(placed.into());
    }
    let what = format!(
        "bucket {index} of {} × {} has tensors of {end} elements",
        gradients.len(),
        gradients.dtype()
    );
    Err(Error::usage(what, "pass the tensors that cover a bucket of floats"))
}

/// Fails unless the algorithm works only on gradients.
fn check_works_on_gradients(algorithm: &AnyAlgorithm) -> Result<()> {
    check_is_free(algorithm)?;
    if !algorithm.needs().parameters {
        return Ok(());
    }
    let what =
        format!("{} works on parameters, and a communication hook has gradients only", algorithm.name());
    Err(Error::usage(what, "train with the engine, DataParallel, instead of that of the framework"))
}
