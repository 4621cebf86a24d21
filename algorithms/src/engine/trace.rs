//! The engine's side of a trace: what is recorded when.

use super::DataParallel;
use super::runner::Stage;
use crate::plugin::StepInfo;
use crate::trace::{Clock, Kind, Offset, Recorded, Recorder, Span, Timeline, Trace, align, gather};
use hexagram_logical::{Communicator, Error, Result};
use std::cell::RefCell;

/// Training thread's part of a trace under way.
pub(super) struct OpenTrace {
    clock: Clock,
    timeline: Timeline,
    /// Offsets of the ranks' clocks at the beginning, at rank 0.
    first: Vec<Offset>,
}

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
    /// Begins to record what this rank does, until [`Tracing::collect`]. A collective call, between steps.
    ///
    /// Recording takes two looks at the clock for each hook and each part of a step; nothing is communicated for it
    /// until it is collected. A trace that was begun before and not collected is lost.
    ///
    /// # Errors
    /// Errors of the communication, by which the ranks' clocks are compared.
    pub fn begin(&mut self) -> Result<()> {
        self.0.checked_with(DataParallel::complete)?;
        let clock = Clock::start();
        let first = align(&self.0.comm, &clock);
        let first = self.0.checked(first)?;
        self.0.scheduler.call(async move |runner| {
            runner.begin_trace(Recorder::new(clock));
            Ok(())
        })?;
        let timeline = Timeline::new(clock, self.0.present.step);
        self.0.tracing = RefCell::new(Some(OpenTrace { clock, timeline, first }));
        Ok(())
    }

    /// Ends the recording and gathers what all ranks have recorded: rank 0 gets it, the others `None`. A
    /// collective call, between steps.
    ///
    /// # Errors
    /// [`Error::Usage`] if nothing is being recorded; errors of the communication.
    pub fn collect(&mut self) -> Result<Option<Trace>> {
        self.0.checked_with(DataParallel::complete)?;
        let Some(OpenTrace { clock, timeline, first }) = self.0.tracing.take() else {
            return Err(Error::usage(
                "nothing is being recorded",
                "begin the trace before the steps that it is of",
            ));
        };
        let (hooks, background) = self.0.scheduler.call(async |runner| Ok(runner.end_trace()))?;
        let training = timeline.finish();
        let mut communication = hooks.unwrap_or_else(|| Recorder::new(clock));
        communication.background(background, &training);
        let recorded = Recorded { clock, training, communication, first };
        let gathered = gather(&self.0.comm, self.0.algorithm.name(), recorded);
        self.0.checked(gathered)
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
        self.tracing.borrow_mut().as_mut().map_or(Kind::Between, |tracing| tracing.timeline.enter(kind, step))
    }
}

/// Returns the span of a hook that begins now.
pub(super) fn hook_begins(
    recorder: &Recorder,
    stage: Stage,
    present: StepInfo,
    bucket: usize,
    bytes: usize,
) -> Span {
    let kind = match stage {
        Stage::Start => Kind::State,
        Stage::Forward => Kind::BeforeForward,
        Stage::Evaluate => Kind::Evaluated,
        Stage::Gradients => Kind::GradientsReady,
        Stage::Backward => Kind::AfterBackward,
        Stage::Step => Kind::AfterStep,
        Stage::Settle => Kind::Settle,
    };
    let now = recorder.now();
    Span { kind, step: present.step, bucket, bytes: bytes as u64, start: now, end: now, sent: 0 }
}

/// Keeps the span of a hook that has ended.
pub(super) fn hook_ends(recorder: &mut Recorder, span: Option<Span>, comm: &Communicator) {
    if let Some(span) = span {
        recorder.ends(Span { sent: comm.world().traffic().bytes_sent(), ..span });
    }
}
