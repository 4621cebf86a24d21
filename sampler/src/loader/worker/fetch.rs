//! From a task to a batch: the work of every worker.

use super::context::{WorkerContext, guarded};
use crate::dataset::{Cause, Dataset, Fetch, IterableDataset, Pass};
use crate::loader::batch::{CollateError, Pool};
use crate::loader::error::LoaderError;
use crate::loader::options::{LoaderOptions, OnFailure};
use std::sync::Arc;
use std::time::Duration;

/// One batch to make.
pub(crate) struct FetchTask {
    pub(crate) ticket: u64,
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    /// Number of the queue.
    pub(crate) lane: usize,
    pub(crate) work: FetchWork,
}

pub(crate) enum FetchWork {
    /// These samples.
    Samples(Vec<usize>),
    /// Number of samples to take in sequence.
    Next(usize),
}

/// Outcome of a task.
pub(crate) struct FetchOutcome<B> {
    pub(crate) ticket: u64,
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    pub(crate) lane: usize,
    pub(crate) made: Made<B>,
    /// Samples in the batch.
    pub(crate) samples: usize,
    /// Samples left out because they could not be loaded.
    pub(crate) skipped: u64,
}

pub(crate) enum Made<B> {
    Batch(B),
    /// All samples were skipped.
    Nothing,
    /// The part of an iterable dataset of this worker has ended.
    Exhausted,
    Failed(LoaderError),
}

/// Makes batches, in one thread.
pub(crate) trait Fetcher<B>: Send {
    /// Makes the batch of a task; `None` if the task has been cancelled.
    fn fetch(&mut self, task: FetchTask, context: &mut WorkerContext) -> Option<FetchOutcome<B>>;
}

/// Creates a fetcher for each thread.
pub(crate) type Fetchers<B> = Arc<dyn Fn() -> Box<dyn Fetcher<B>> + Send + Sync>;

/// Makes a batch of samples.
pub(crate) type Assemble<S, B> = Arc<dyn Fn(Vec<S>, &Pool) -> Result<B, Cause> + Send + Sync>;

/// Treatment of samples that cannot be loaded.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    on_failure: OnFailure,
    retries: u32,
    pause: Duration,
    drop_last: bool,
}

impl From<&LoaderOptions> for Policy {
    fn from(options: &LoaderOptions) -> Self {
        let LoaderOptions { on_failure, retries, retry_pause: pause, drop_last, .. } = *options;
        Policy { on_failure, retries, pause, drop_last }
    }
}

/// A batch of samples by their indices.
pub(crate) struct ByIndex<S, B> {
    pub(crate) dataset: Arc<dyn Dataset<Sample = S>>,
    pub(crate) assemble: Assemble<S, B>,
    pub(crate) policy: Policy,
}

impl<S: Send, B: Send> Fetcher<B> for ByIndex<S, B> {
    fn fetch(&mut self, task: FetchTask, context: &mut WorkerContext) -> Option<FetchOutcome<B>> {
        context.info.epoch = task.epoch;
        let FetchWork::Samples(indices) = &task.work else { return None };
        let mut samples = Vec::with_capacity(indices.len());
        let mut kept = Vec::with_capacity(indices.len());
        for index in indices {
            if context.is_stale(task.generation) {
                return None;
            }
            match self.load(*index, context) {
                Ok(sample) => {
                    samples.push(sample);
                    kept.push(*index);
                }
                Err(_) if self.policy.on_failure == OnFailure::Skip => {}
                Err(error) => return Some(task.failed(error)),
            }
        }
        let skipped = (indices.len() - kept.len()) as u64;
        // A custom collate function may name a place out of range.
        let words = |place: Option<usize>| match place.and_then(|place| kept[1..].get(place.checked_sub(1)?))
        {
            Some(sample) => format!("samples {} (the first) and {sample}", kept[0]),
            None => in_words("samples", &kept),
        };
        Some(task.assembled(samples, skipped, &self.assemble, words, context))
    }
}

impl<S, B> ByIndex<S, B> {
    fn load(&self, index: usize, context: &WorkerContext) -> Result<S, LoaderError> {
        context.status.loading(index);
        let fetch = Fetch::new(&context.info, &context.samples, index);
        let mut attempts = 1;
        loop {
            let cause = match guarded(|| self.dataset.get(index, &fetch)) {
                Ok(sample) => return Ok(sample),
                Err(cause) => cause,
            };
            if attempts > self.policy.retries {
                let worker = context.who;
                let epoch = context.info.epoch;
                let cause = cause.into();
                return Err(LoaderError::Sample { index, worker, epoch, attempts, cause });
            }
            attempts += 1;
            context.pause(self.policy.pause);
        }
    }
}

/// A batch of the next items of an iterable dataset.
pub(crate) struct InTurn<S, B> {
    pub(crate) dataset: Arc<dyn IterableDataset<Sample = S>>,
    pub(crate) assemble: Assemble<S, B>,
    pub(crate) policy: Policy,
    pub(crate) pass: Option<OnePass<S>>,
}

/// Maximum number of consecutive failures of an iterable dataset that are skipped; it may never recover.
const HOPELESS: usize = 1000;

/// The pass of a worker over its part, in one epoch.
pub(crate) struct OnePass<S> {
    epoch: u64,
    generation: u64,
    items: Pass<S>,
    /// Number of items returned, including failed ones.
    given: usize,
    /// Number of consecutive failures.
    failing: usize,
    ended: bool,
}

impl<S> OnePass<S> {
    /// Returns the next item; `None` if it was skipped, or if the pass has ended.
    fn next(&mut self, on_failure: OnFailure, skipped: &mut u64) -> Result<Option<S>, Cause> {
        match guarded(|| self.items.next().transpose()) {
            Ok(sample) => {
                self.ended = sample.is_none();
                self.given += usize::from(!self.ended);
                self.failing = 0;
                Ok(sample)
            }
            Err(_) if on_failure == OnFailure::Skip && self.failing < HOPELESS => {
                self.given += 1;
                self.failing += 1;
                *skipped += 1;
                Ok(None)
            }
            Err(cause) => Err(cause),
        }
    }
}

impl<S: Send, B: Send> Fetcher<B> for InTurn<S, B> {
    fn fetch(&mut self, task: FetchTask, context: &mut WorkerContext) -> Option<FetchOutcome<B>> {
        context.info.epoch = task.epoch;
        let FetchWork::Next(wanted) = task.work else { return None };
        let failed = |item, cause: Cause, context: &WorkerContext| {
            let worker = context.who;
            let epoch = context.info.epoch;
            let cause = cause.into();
            LoaderError::Item { item, worker, epoch, cause }
        };
        let Policy { on_failure, drop_last, .. } = self.policy;
        let pass = match self.pass(&task, context) {
            Ok(pass) => pass,
            Err(cause) => return Some(task.failed(failed(0, cause, context))),
        };
        let mut samples = Vec::with_capacity(wanted);
        let mut skipped = 0;
        while samples.len() < wanted && !pass.ended {
            if context.is_stale(task.generation) {
                return None;
            }
            context.status.loading(pass.given);
            match pass.next(on_failure, &mut skipped) {
                Ok(sample) => samples.extend(sample),
                Err(cause) => return Some(task.failed(failed(pass.given, cause, context))),
            }
        }
        if samples.is_empty() || (samples.len() < wanted && drop_last) {
            return Some(FetchOutcome { skipped, ..task.done(Made::Exhausted) });
        }
        let given = pass.given;
        let words = |_| format!("its items up to {}", given - 1);
        Some(task.assembled(samples, skipped, &self.assemble, words, context))
    }
}

impl<S, B> InTurn<S, B> {
    /// Returns the pass of a task, beginning it at its first task.
    fn pass(&mut self, task: &FetchTask, context: &WorkerContext) -> Result<&mut OnePass<S>, Cause> {
        let FetchTask { epoch, generation, .. } = *task;
        let current = self.pass.take().filter(|pass| (pass.epoch, pass.generation) == (epoch, generation));
        let pass = match current {
            Some(pass) => pass,
            None => {
                let items = guarded(|| self.dataset.iter(&context.info))?;
                OnePass { epoch, generation, items, given: 0, failing: 0, ended: false }
            }
        };
        Ok(self.pass.insert(pass))
    }
}

impl FetchTask {
    pub(crate) fn done<B>(&self, made: Made<B>) -> FetchOutcome<B> {
        let FetchTask { ticket, generation, epoch, lane, .. } = *self;
        FetchOutcome { ticket, generation, epoch, lane, made, samples: 0, skipped: 0 }
    }

    pub(super) fn failed<B>(&self, error: LoaderError) -> FetchOutcome<B> {
        self.done(Made::Failed(error))
    }

    /// Makes a batch of the loaded samples; `words` describes samples, given the place of the invalid one.
    fn assembled<S, B>(
        &self,
        samples: Vec<S>,
        skipped: u64,
        assemble: &Assemble<S, B>,
        words: impl Fn(Option<usize>) -> String,
        context: &WorkerContext,
    ) -> FetchOutcome<B> {
        if samples.is_empty() {
            return FetchOutcome { skipped, ..self.done(Made::Nothing) };
        }
        context.status.collating();
        let count = samples.len();
        let made = guarded(|| assemble(samples, &context.pool));
        let worker = context.who;
        let epoch = self.epoch;
        if let Some(cause) = context.pool.take_failure() {
            return self.failed(LoaderError::Memory { worker, epoch, cause: cause.into() });
        }
        match made {
            Ok(batch) => FetchOutcome { samples: count, skipped, ..self.done(Made::Batch(batch)) },
            Err(cause) => {
                let place = cause.downcast_ref::<CollateError>().map(|error| error.place);
                let samples = words(place);
                self.failed(LoaderError::Collate { worker, samples, epoch, cause: cause.into() })
            }
        }
    }
}

/// Names a few of many numbers.
fn in_words(what: &str, numbers: &[usize]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(usize::to_string).collect();
    let rest =
        if numbers.len() > SHOWN { format!(" and {} more", numbers.len() - SHOWN) } else { String::new() };
    format!("{what} {}{rest}", shown.join(", "))
}
