//! Iteration over the batches of an epoch.

use super::DataLoader;
use super::arrivals::{Arrivals, Retired};
use super::bell::DeadlineTimer;
use super::error::{Actor, LoaderError};
use super::plan::{EpochPlan, LoaderState};
use super::worker::{FetchOutcome, FetchTask, Fetcher, LATE, Made, WorkerContext, Workers, pin};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// State of a loader.
pub(super) struct LoaderRun<B> {
    source: Option<BatchSource<B>>,
    arrivals: Arrivals<B>,
    /// Epoch and position of the next batch to be handed out.
    at: (u64, usize),
    /// Epoch and position at which the next call of [`DataLoader::iter`] begins.
    next: (u64, usize),
    /// True once the plan has reached the epoch after the current one.
    ahead: bool,
    /// True once the current epoch has ended, with or without an error.
    over: bool,
    /// Batches to drop before the position is reached.
    replay: usize,
    /// Items handed out in this epoch.
    items: usize,
    pub(super) skipped: u64,
    clock: Option<DeadlineTimer>,
    /// Deadline of the batch that a future waits for.
    deadline: Option<Instant>,
}

impl<B> LoaderRun<B> {
    /// Creates the state of a loader that will begin with this epoch.
    pub(super) fn at(epoch: u64) -> Self {
        LoaderRun {
            source: None,
            arrivals: Arrivals::new(),
            at: (epoch, 0),
            next: (epoch, 0),
            ahead: false,
            over: true,
            replay: 0,
            items: 0,
            skipped: 0,
            clock: None,
            deadline: None,
        }
    }
}

/// Threads that load batches.
enum BatchSource<B> {
    Caller(Box<dyn Fetcher<B>>, Box<WorkerContext>),
    Workers(Workers<B>),
}

/// A batch, an error, or the end of the epoch.
type NextResult<B> = Option<Result<B, LoaderError>>;

/// One epoch of a [`DataLoader`]: an iterator over its batches.
///
/// An error ends the epoch. Dropping it early cancels the outstanding batches. Workers that are not persistent end
/// before the drop returns, each after its current sample. If a worker is stuck, the drop waits for
/// [`LoaderOptions::timeout`](super::LoaderOptions::timeout), or five minutes, and then warns and abandons it.
pub struct Epoch<'a, B: Send + 'static> {
    loader: &'a mut DataLoader<B>,
}

impl<B: Send + 'static> DataLoader<B> {
    /// Returns the batches of the next epoch. The first one is the current epoch of the sampler, by default 0, or the
    /// one set by [`resume`](Self::resume) or [`set_epoch`](Self::set_epoch).
    #[allow(clippy::iter_not_returning_iterator, reason = "an epoch is an iterator")]
    pub fn iter(&mut self) -> Epoch<'_, B> {
        self.begin();
        Epoch { loader: self }
    }

    fn begin(&mut self) {
        let (epoch, position) = self.run.next;
        // Unless the workers have begun this epoch already, and no batches of a different epoch are outstanding.
        if !self.run.over || !self.run.ahead || (self.plan.epoch(), 0) != (epoch, position) {
            self.cancel();
            self.plan.begin(epoch, position);
        }
        self.run.ahead = false;
        self.run.at = (epoch, position);
        self.run.next = (epoch.wrapping_add(1), 0);
        self.run.replay = if self.plan.replays() { position } else { 0 };
        self.run.over = false;
        self.run.items = 0;
        self.run.deadline = None;
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.run.over, true) {
            self.cancel();
        }
        if !self.persistent {
            self.stop();
        }
    }

    /// Sets the epoch that the next [`iter`](Self::iter) returns. Otherwise epochs follow each other.
    ///
    /// Setting the epoch that [`resume`](Self::resume) continues does not restart it, so that a loop may set each
    /// epoch that it runs.
    pub fn set_epoch(&mut self, epoch: u64) {
        if self.run.next.0 != epoch {
            self.run.next = (epoch, 0);
        }
    }

    /// Returns the position of the loader: after the last batch that was handed out.
    pub fn state(&self) -> LoaderState {
        self.plan.state(self.recipe.base_seed, self.run.at)
    }

    /// Continues from the state of another loader of the same dataset and order. The next [`iter`](Self::iter)
    /// returns exactly the remaining batches, for any number of workers. With a different number of ranks, all ranks
    /// together get the remaining samples. If the order of the sampler depends on the number of ranks, they come in a new
    /// order; see [`Sampler::set_parts`](crate::Sampler::set_parts).
    ///
    /// Takes constant time, except with an iterable dataset, whose earlier items are loaded again and dropped.
    ///
    /// # Errors
    ///
    /// [`LoaderError::State`] if the state has a different order or seed, for which the position is meaningless.
    /// [`LoaderError::BadState`] if its position, groupings and parts contradict each other. The loader then stays at its
    /// position.
    pub fn resume(&mut self, state: &LoaderState) -> Result<(), LoaderError> {
        let ours = self.state();
        if (state.seed, state.order) != (ours.seed, ours.order) {
            let same_seed = state.seed == ours.seed;
            // Shows only the difference: the seed of the sampler is part of its fingerprint only.
            let describe = |state: &LoaderState| match same_seed {
                true => format!("a sampler of fingerprint {:#x}", state.order),
                false => format!("seed {}", state.seed),
            };
            return Err(LoaderError::State { theirs: describe(state), ours: describe(&ours) });
        }
        self.plan.resume(state)?;
        self.cancel();
        self.run.at = (state.epoch, state.position);
        self.run.next = self.run.at;
        Ok(())
    }

    /// Ends the threads.
    pub(super) fn stop(&mut self) {
        self.run.source = None;
        self.run.arrivals.clear();
        self.run.ahead = false;
    }

    /// Cancels the outstanding batches.
    fn cancel(&mut self) {
        if let Some(BatchSource::Workers(workers)) = &self.run.source {
            workers.cancel();
        }
        self.run.arrivals.clear();
        self.run.ahead = false;
    }

    /// Returns the next batch, if it has arrived.
    fn poll_batch(&mut self) -> Poll<NextResult<B>> {
        loop {
            if self.run.over {
                return Poll::Ready(None);
            }
            if let Err(error) = self.feed() {
                return Poll::Ready(self.fail(error));
            }
            if let Some(BatchSource::Workers(workers)) = &self.run.source {
                while let Some(done) = workers.try_receive() {
                    arrive(&mut self.plan, &mut self.run.arrivals, done);
                }
            }
            let epoch = self.run.at.0;
            // The batches to drop are the first ones of the order.
            match self.run.arrivals.take(epoch, self.in_order || self.run.replay > 0) {
                Some(done) => {
                    if let Some(batch) = self.hand_out(done) {
                        return Poll::Ready(Some(batch));
                    }
                }
                None if self.is_through() => self.finish(),
                None => return Poll::Pending,
            }
        }
    }

    /// Returns true if all batches of the current epoch have been handed out.
    fn is_through(&self) -> bool {
        let epoch = self.run.at.0;
        self.run.arrivals.is_through(epoch) && (self.plan.epoch() != epoch || self.plan.has_ended())
    }

    /// Submits tasks, up to the prefetch limit; with persistent workers, also of the next epoch.
    fn feed(&mut self) -> Result<(), LoaderError> {
        if self.run.source.is_none() {
            self.run.source = Some(self.hire()?);
        }
        while self.run.arrivals.outstanding() < self.outstanding {
            let Some(next) = self.plan.next() else {
                let (epoch, _) = self.run.at;
                if self.persistent && self.plan.epoch() == epoch && self.plan.has_ended() {
                    self.plan.begin(epoch.wrapping_add(1), 0);
                    self.run.ahead = true;
                    continue;
                }
                return Ok(());
            };
            let epoch = self.plan.epoch();
            let ticket = self.run.arrivals.expect(epoch, next.end);
            match &mut self.run.source {
                Some(BatchSource::Caller(fetcher, context)) => {
                    let task = FetchTask { ticket, generation: 0, epoch, lane: 0, work: next.work };
                    let Some(mut done) = fetcher.fetch(task, context) else { continue };
                    if let Some(stage) = &self.recipe.pin {
                        done = pin(done, stage);
                    }
                    arrive(&mut self.plan, &mut self.run.arrivals, done);
                }
                Some(BatchSource::Workers(workers)) => {
                    let generation = workers.generation();
                    let lane = next.lane;
                    workers.send(FetchTask { ticket, generation, epoch, lane, work: next.work });
                }
                None => {}
            }
        }
        Ok(())
    }

    fn hire(&self) -> Result<BatchSource<B>, LoaderError> {
        let recipe = &self.recipe;
        Ok(match recipe.workers {
            0 => {
                let pool = recipe.pool.clone();
                let context = WorkerContext::of_caller(recipe.base_seed, pool, recipe.samples.clone());
                BatchSource::Caller((recipe.fetchers)(), Box::new(context))
            }
            _ => BatchSource::Workers(Workers::start(recipe, self.plan.lanes())?),
        })
    }

    /// Hands out the outcome of a task, unless it is empty.
    fn hand_out(&mut self, done: FetchOutcome<B>) -> NextResult<B> {
        if let Made::Failed(error) = done.made {
            return self.fail(error);
        }
        if let Some(retired) = self.run.arrivals.retire() {
            self.advance(&retired);
        }
        self.count(done.samples);
        let Made::Batch(batch) = done.made else {
            self.run.skipped += done.skipped;
            return None;
        };
        if self.run.replay > 0 {
            self.run.replay -= 1;
            return None;
        }
        self.run.skipped += done.skipped;
        Some(Ok(batch))
    }

    /// Advances the position; replayed batches are already counted in it.
    fn advance(&mut self, retired: &Retired) {
        match self.plan.replays() {
            false => self.run.at.1 = retired.end,
            true if self.run.replay == 0 => self.run.at.1 += retired.batches,
            true => {}
        }
    }

    /// Warns once if an iterable dataset has returned more items than its length.
    fn count(&mut self, items: usize) {
        let before = self.run.items;
        self.run.items += items;
        let Some(promised) = self.promised else { return };
        if before <= promised && self.run.items > promised {
            tracing::warn!(
                "an iterable dataset has returned {} items in epoch {}, more than its len() of {promised}; \
                 if every worker returns all items, use the WorkerInfo in `iter` to split them",
                self.run.items,
                self.run.at.0,
            );
        }
    }

    /// Ends the epoch successfully.
    fn finish(&mut self) {
        self.run.over = true;
        self.run.at = (self.run.at.0.wrapping_add(1), 0);
        self.run.next = self.run.at;
    }

    /// Ends the epoch with an error.
    fn fail(&mut self, error: LoaderError) -> NextResult<B> {
        self.run.over = true;
        // Persistent workers may be in the next epoch already, whose first batch would wait for the remaining ones.
        self.cancel();
        Some(Err(error))
    }

    /// Waits for the next batch.
    fn next_blocking(&mut self) -> NextResult<B> {
        let deadline = self.recipe.patience.map(|patience| Instant::now() + patience);
        loop {
            if let Poll::Ready(batch) = self.poll_batch() {
                return batch;
            }
            let Some(BatchSource::Workers(workers)) = &self.run.source else { return None };
            match workers.receive(deadline.unwrap_or_else(|| Instant::now() + LATE)) {
                Ok(done) => arrive(&mut self.plan, &mut self.run.arrivals, done),
                Err(LoaderError::Timeout { .. }) if deadline.is_none() => workers.warn_of_wait(),
                Err(error) => return self.fail(error),
            }
        }
    }

    /// Returns the next batch, or registers `waker` for its arrival.
    fn poll_waking(&mut self, waker: &Waker) -> Poll<NextResult<B>> {
        // Registered first, so that an arrival during this call wakes it.
        self.recipe.bell.register(waker);
        if let Poll::Ready(batch) = self.poll_batch() {
            self.run.deadline = None;
            return Poll::Ready(batch);
        }
        let Some(BatchSource::Workers(workers)) = &self.run.source else { return Poll::Ready(None) };
        match self.run.deadline {
            Some(deadline) if Instant::now() >= deadline => {
                let error = workers.timeout();
                Poll::Ready(self.fail(error))
            }
            Some(_) => Poll::Pending,
            None => match self.set_clock() {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(self.fail(error)),
            },
        }
    }

    fn set_clock(&mut self) -> Result<(), LoaderError> {
        let Some(patience) = self.recipe.patience else { return Ok(()) };
        let deadline = Instant::now() + patience;
        let clock = match self.run.clock.take() {
            Some(clock) => clock,
            None => DeadlineTimer::start(self.recipe.bell.clone())
                .map_err(|cause| LoaderError::Spawn { who: Actor::Clock, cause: Arc::new(cause) })?,
        };
        clock.set(deadline);
        self.run.clock = Some(clock);
        self.run.deadline = Some(deadline);
        Ok(())
    }
}

/// Records an arrived batch.
fn arrive<B>(plan: &mut EpochPlan, arrivals: &mut Arrivals<B>, done: FetchOutcome<B>) {
    if let Made::Exhausted = done.made {
        plan.exhausted(done.epoch, done.lane);
    }
    arrivals.put(done);
}

impl<B: Send + 'static> Epoch<'_, B> {
    /// Returns the next batch, without blocking the thread, on any executor. `None` at the end of the epoch. Cancel
    /// safe: if the future is dropped, the next call returns the batch.
    ///
    /// Without workers, polling the future makes the batch.
    pub async fn next_async(&mut self) -> Option<Result<B, LoaderError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next batch, like [`next_async`](Self::next_async), for a custom stream.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<B, LoaderError>>> {
        self.loader.poll_waking(context.waker())
    }

    /// Returns the position of the loader: after the last batch that was handed out.
    pub fn state(&self) -> LoaderState {
        self.loader.state()
    }
}

impl<B: Send + 'static> Iterator for Epoch<'_, B> {
    type Item = Result<B, LoaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.loader.next_blocking()
    }
}

impl<B: Send + 'static> Drop for Epoch<'_, B> {
    fn drop(&mut self) {
        self.loader.end();
    }
}
