//! The engine's side of a trace: what is recorded when.

use super::traced::OpenTrace;
use super::{DataParallel, hooks};
use crate::plugin::StepInfo;
use crate::trace::{Clock, Kind, Recorded, Recorder, Timeline, Trace, align, gather};
use hexagram_logical::device::Timestamp;
use hexagram_logical::{Error, Queue, Result};
use std::cell::RefCell;
use std::sync::Arc;

/// Recording of what all ranks do: see [`DataParallel::trace`].
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
    /// Returns what begins and ends a [`Trace`] of some steps.
    pub fn trace(&mut self) -> Tracing<'_> {
        Tracing(self)
    }
}

impl Tracing<'_> {
    /// Lets this trace and later ones have the times of a device that computes the framework's passes. `stamp` enqueues a
    /// point behind all that the framework has given the device so far, as a queue's
    /// [`timestamp`](hexagram_logical::Queue::timestamp) is; it is called on the training thread, while a trace is
    /// recorded, wherever a pass begins or ends. An adapter calls this once.
    pub fn stamp_passes(&mut self, stamp: impl Fn() -> Arc<dyn Timestamp> + Send + Sync + 'static) {
        self.0.tracing.stamps = Some(Arc::new(stamp));
    }

    /// Begins to record what this rank does, until [`Tracing::collect`]. A collective call, between steps.
    ///
    /// Recording takes two looks at the clock for each hook and each part of a step, and as many timestamps of the
    /// device that has the buckets; nothing is communicated for it until it is collected. A trace that was begun before
    /// and not collected is lost.
    ///
    /// # Errors
    /// Errors of the communication, by which the ranks' clocks are compared.
    pub fn begin(&mut self) -> Result<()> {
        self.0.checked_with(DataParallel::complete)?;
        // A device sets its clock when it is first asked, best while it has nothing to do.
        drop(self.0.queues.of(0).timestamp());
        let clock = Clock::start();
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

    /// Runs `load`, which waits for the loader's next batch, as the span `loading` of a trace that is being recorded.
    pub fn loading<R>(&mut self, load: impl FnOnce() -> R) -> R {
        let before = self.0.enter(Kind::Loading);
        let loaded = load();
        self.0.enter(before);
        loaded
    }

    /// Ends the recording and gathers what all ranks have recorded: rank 0 gets it, the others `None`. A
    /// collective call, between steps.
    ///
    /// # Errors
    /// [`Error::Usage`] if nothing is being recorded; errors of the communication.
    pub fn collect(&mut self) -> Result<Option<Trace>> {
        self.0.checked_with(DataParallel::complete)?;
        let Some(OpenTrace { clock, timeline, first }) = self.0.tracing.open.take() else {
            return Err(Error::usage(
                "nothing is being recorded",
                "begin the trace before the steps that it is of",
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
        let recorded = Recorded { clock, training, communication, first };
        let gathered = gather(&self.0.comm, recorded);
        let ranks = self.0.checked(gathered)?;
        let algorithm = self.0.algorithm.name().to_owned();
        let buckets = hooks::lock(&self.0.backward).plan().outlines();
        Ok(ranks.map(|ranks| Trace { algorithm, buckets, ranks }))
    }
}

impl DataParallel {
    /// Does what may have to wait for other ranks.
    pub(super) fn while_waiting<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.enter(Kind::Waiting);
        let outcome = work(self);
        self.enter(before);
        outcome
    }

    /// Notes that the training thread does something else from here on; returns what it was doing.
    pub(super) fn enter(&self, kind: Kind) -> Kind {
        let step = self.present.step;
        let mut open = self.tracing.open.borrow_mut();
        open.as_mut().map_or(Kind::Between, |trace| trace.timeline.enter(kind, step))
    }
}

impl DataParallel {
    /// Makes a step of the optimizer on a bucket of so many bytes in memory of `queue`.
    pub(super) fn record_step(
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
