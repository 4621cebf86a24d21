//! The trace recording of the engine: its content, and its start and end.

use super::traced::OpenTrace;
use crate::engine::{DataParallel, hooks};
use crate::plugin::StepInfo;
use crate::trace::{Kind, RankRecords, Recorder, Timeline, Trace, TraceClock, align, gather};
use hexagram_logical::device::Timestamp;
use hexagram_logical::{Error, Queue, Result};
use std::cell::RefCell;
use std::sync::Arc;

/// Recording of the activity of all ranks: see [`DataParallel::trace`].
///
/// ```
/// use hexagram::algorithms::DataParallel;
/// use hexagram::logical::Result;
///
/// fn record(engine: &mut DataParallel, train: impl Fn(&mut DataParallel) -> Result<()>) -> Result<()> {
///     engine.trace().begin()?;
///     train(engine)?;
///     if let Some(trace) = engine.trace().collect()? {
///         println!("{}", trace.report());
///     }
///     Ok(())
/// }
/// ```
pub struct Tracing<'a>(&'a mut DataParallel);

impl DataParallel {
    /// Returns the methods that begin and end a [`Trace`].
    pub fn trace(&mut self) -> Tracing<'_> {
        Tracing(self)
    }
}

impl Tracing<'_> {
    /// Adds the times of a device that computes the passes of the framework to this trace and later ones. `stamp`
    /// enqueues a timestamp after all work that the framework has enqueued so far, like
    /// [`timestamp`](hexagram_logical::Queue::timestamp) of a queue; it is called on the training thread at the start
    /// and end of each pass while a trace is recorded. An adapter calls this once.
    pub fn stamp_passes(&mut self, stamp: impl Fn() -> Arc<dyn Timestamp> + Send + Sync + 'static) {
        self.0.tracing.stamps = Some(Arc::new(stamp));
    }

    /// Begins to record the activity of this rank, until [`Tracing::collect`]. A collective call, between steps.
    ///
    /// Recording reads the clock twice for each hook and each part of a step, and takes the same number of timestamps on the
    /// device of the buckets; it communicates only when the trace is collected. An earlier trace that was not collected is
    /// lost.
    ///
    /// # Errors
    /// Errors of the communication that compares the clocks of the ranks.
    pub fn begin(&mut self) -> Result<()> {
        self.0.checked_with(DataParallel::complete)?;
        // A device sets its clock at the first timestamp, best while it is idle.
        drop(self.0.queues.of(0).timestamp());
        let clock = TraceClock::start();
        let first = align(&self.0.comm, &clock);
        let first = self.0.checked(first)?;
        self.0.scheduler.call(async move |runner| {
            runner.begin_trace(Recorder::new(clock));
            Ok(())
        })?;
        let timeline = Timeline::new(clock, self.0.present.step, self.0.tracing.stamps.clone());
        self.0.tracing.open = RefCell::new(Some(OpenTrace { clock, timeline, first }));
        Ok(())
    }

    /// Runs `load`, which waits for the next batch of the loader, as the span `loading` of the current trace.
    pub fn loading<R>(&mut self, load: impl FnOnce() -> R) -> R {
        let before = self.0.enter(Kind::Loading);
        let loaded = load();
        self.0.enter(before);
        loaded
    }

    /// Ends the recording and gathers the records of all ranks: rank 0 gets the trace, the others `None`. A collective
    /// call, between steps.
    ///
    /// # Errors
    /// [`Error::Usage`] if no trace is being recorded; errors of the communication.
    pub fn collect(&mut self) -> Result<Option<Trace>> {
        self.0.checked_with(DataParallel::complete)?;
        let Some(OpenTrace { clock, timeline, first }) = self.0.tracing.open.take() else {
            return Err(Error::usage(
                "nothing is being recorded",
                "begin the trace before the steps to record",
            ));
        };
        let (hooks, background) = self.0.scheduler.call(async |runner| Ok(runner.end_trace()))?;
        let mut training = timeline.finish();
        let mut communication = hooks.unwrap_or_else(|| Recorder::new(clock));
        communication.background(background, &training);
        // The other ranks wait meanwhile.
        let limit = self.0.comm.world().deadline() / 4;
        training.settle(limit);
        communication.settle(limit);
        let recorded = RankRecords { clock, training, communication, first };
        let gathered = gather(&self.0.comm, recorded);
        let ranks = self.0.checked(gathered)?;
        let algorithm = self.0.algorithm.name().to_owned();
        let buckets = hooks::lock(&self.0.backward).plan().outlines();
        Ok(ranks.map(|ranks| Trace { algorithm, buckets, ranks }))
    }
}

impl DataParallel {
    /// Runs work that may have to wait for other ranks.
    pub(crate) fn while_waiting<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.enter(Kind::Waiting);
        let outcome = work(self);
        self.enter(before);
        outcome
    }

    /// Starts a span of another kind for the training thread; returns the previous kind.
    pub(crate) fn enter(&self, kind: Kind) -> Kind {
        let step = self.present.step;
        let mut open = self.tracing.open.borrow_mut();
        open.as_mut().map_or(Kind::Between, |trace| trace.timeline.enter(kind, step))
    }
}

impl DataParallel {
    /// Makes an optimizer step on a bucket of `bytes` bytes in memory of `queue`.
    pub(crate) fn record_step(
        &self,
        (step, bucket, bytes): (StepInfo, usize, usize),
        queue: &Queue,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let begun = if self.tracing.open.borrow().is_some() { queue.timestamp() } else { None };
        work()?;
        if let Some(begun) = begun
            && let Some(ended) = queue.timestamp()
            && let Some(trace) = &mut *self.tracing.open.borrow_mut()
        {
            trace.timeline.stepped(step.step, bucket, bytes, [begun, ended]);
        }
        Ok(())
    }
}
