//! Spans, and their two recorders: one for the training thread, one for the communication thread. Work on a device has
//! its own times (`device`).
//!
//! Recording a span reads the clock and appends to a list; messages and files are written only when the trace is
//! collected.

use super::clock::TraceClock;
use super::device::{DeviceSpans, Stamp};
use hexagram_logical::asynchronous::Work;
use hexagram_logical::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// Kind of work of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Training thread, from the end of a step to [`DataParallel::forward`](crate::DataParallel::forward): logging,
    /// evaluation, and loading in a loop that does not call [`Tracing::loading`](crate::engine::Tracing::loading).
    Between,
    /// Training thread, waiting for the next batch of the loader:
    /// [`Tracing::loading`](crate::engine::Tracing::loading).
    Loading,
    /// Training thread, from the end of a step to the backward pass, in a loop that does not mark the beginning of its
    /// forward pass: loading and forward pass together, and the optimizer step if the loop does not mark its end.
    LoadingAndForward,
    /// Training thread, forward pass.
    Forward,
    /// Training thread, backward pass.
    Backward,
    /// Training thread, from the end of the synchronization to the end of the step.
    Optimizer,
    /// Training thread, waiting for hooks.
    Waiting,
    /// Hook [`state`](crate::Algorithm::state).
    State,
    /// Hook [`before_forward`](crate::Algorithm::before_forward).
    BeforeForward,
    /// Hook [`evaluated`](crate::Algorithm::evaluated).
    Evaluated,
    /// Hook [`gradients_ready`](crate::Algorithm::gradients_ready).
    GradientsReady,
    /// Hook [`after_backward`](crate::Algorithm::after_backward).
    AfterBackward,
    /// Hook [`after_step`](crate::Algorithm::after_step).
    AfterStep,
    /// Hook [`settle`](crate::Algorithm::settle).
    Settle,
    /// A background thread of an algorithm: an operation of a
    /// [`Background`](hexagram_logical::asynchronous::Background), or requests that a
    /// [`Service`](hexagram_logical::asynchronous::Service) makes or answers.
    Background,
}

impl Kind {
    /// All kinds; a kind is sent as its index here.
    pub const ALL: [Kind; 15] = [
        Kind::Between,
        Kind::Loading,
        Kind::LoadingAndForward,
        Kind::Forward,
        Kind::Backward,
        Kind::Optimizer,
        Kind::Waiting,
        Kind::State,
        Kind::BeforeForward,
        Kind::Evaluated,
        Kind::GradientsReady,
        Kind::AfterBackward,
        Kind::AfterStep,
        Kind::Settle,
        Kind::Background,
    ];

    /// Returns the name of the kind in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Between => "between steps",
            Kind::Loading => "loading",
            Kind::LoadingAndForward => "loading and forward",
            Kind::Forward => "forward",
            Kind::Backward => "backward",
            Kind::Optimizer => "optimizer",
            Kind::Waiting => "waiting",
            Kind::State => "state",
            Kind::BeforeForward => "before_forward",
            Kind::Evaluated => "evaluated",
            Kind::GradientsReady => "gradients_ready",
            Kind::AfterBackward => "after_backward",
            Kind::AfterStep => "after_step",
            Kind::Settle => "settle",
            Kind::Background => "background",
        }
    }

    /// Returns true if spans of this kind are computation.
    pub fn is_compute(self) -> bool {
        matches!(self, Kind::LoadingAndForward | Kind::Forward | Kind::Backward | Kind::Optimizer)
    }

    /// Returns true if spans of this kind are communication, in a hook or in the background.
    pub fn is_communication(self) -> bool {
        self as usize >= Kind::State as usize
    }
}

/// Place of the times of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The host: the work of a thread, even if it only enqueued work for a device.
    Host,
    /// A device: the execution of enqueued work.
    Device,
}

/// Uninterrupted work of one thread, or its execution on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Kind of work.
    pub kind: Kind,
    /// Place of the times.
    pub place: Place,
    /// Step of the work. Work between two steps belongs to the later one.
    pub step: u64,
    /// Bucket of a hook, or of a step of the engine optimizer on a device; otherwise 0.
    pub bucket: usize,
    /// Size of that bucket, in bytes; otherwise 0.
    pub bytes: u64,
    /// Time of the start, in nanoseconds.
    pub start: i64,
    /// Time of the end, in nanoseconds.
    pub end: i64,
    /// Bytes that this rank had sent by the end of a communication, including headers; otherwise 0, and on a device.
    pub sent: u64,
}

impl Span {
    /// Number of words of a span in a message.
    pub(super) const WORDS: usize = 8;

    pub(super) fn to_words(self) -> [i64; Self::WORDS] {
        let Span { kind, place, step, bucket, bytes, start, end, sent } = self;
        [kind as i64, place as i64, step as i64, bucket as i64, bytes as i64, start, end, sent as i64]
    }

    pub(super) fn from_words(words: [i64; Self::WORDS]) -> Result<Self> {
        let [kind, place, step, bucket, bytes, start, end, sent] = words;
        let kind = usize::try_from(kind).ok().and_then(|kind| Kind::ALL.get(kind)).copied();
        let place = [Place::Host, Place::Device].into_iter().find(|known| *known as i64 == place);
        let (Some(kind), Some(place)) = (kind, place) else {
            let what = "another rank's trace has an unknown kind of span";
            return Err(Error::usage(what, "use one version of hexagram"));
        };
        Ok(Span {
            kind,
            place,
            step: step as u64,
            bucket: bucket as usize,
            bytes: bytes as u64,
            start,
            end,
            sent: sent as u64,
        })
    }
}

/// Maximum number of spans that a thread keeps (56 MiB); later ones are only counted.
pub(super) const LIMIT: usize = 1 << 20;

/// Records of one thread.
pub(crate) struct Recorder {
    pub(super) clock: TraceClock,
    pub(super) spans: Vec<Span>,
    /// Spans of the work enqueued on a device.
    pub(super) device: DeviceSpans,
    /// Number of spans beyond the limit.
    pub(super) dropped: u64,
}

impl Recorder {
    pub(crate) fn new(clock: TraceClock) -> Self {
        Recorder { clock, spans: Vec::new(), device: DeviceSpans::default(), dropped: 0 }
    }

    pub(crate) fn now(&self) -> i64 {
        self.clock.now()
    }

    /// Records a span that ends now.
    pub(crate) fn ends(&mut self, span: Span) {
        self.keep(Span { end: self.now(), ..span });
    }

    /// Records a span of a device, between two timestamps of a queue.
    pub(crate) fn device_did(&mut self, span: Span, stamps: [Stamp; 2]) {
        let span = Span { place: Place::Device, ..span };
        if self.has_room() { self.device.keep(&self.clock, span, stamps) } else { self.dropped += 1 }
    }

    /// Waits until the times of all spans are known, for at most `limit`.
    pub(crate) fn settle(&mut self, limit: Duration) {
        self.device.settle(&self.clock, limit);
    }

    /// Records background work, in the steps of the training thread in which it began.
    pub(crate) fn background(&mut self, (work, dropped): (Vec<Work>, u64), training: &Recorder) {
        self.dropped += dropped;
        for Work { start, end, sent } in work {
            let start = self.clock.at(start);
            let end = self.clock.at(end);
            let begun = training.spans.partition_point(|span| span.start <= start);
            let step = training.spans.get(begun.saturating_sub(1)).map_or(0, |span| span.step);
            let kind = Kind::Background;
            self.keep(Span { kind, place: Place::Host, step, bucket: 0, bytes: 0, start, end, sent });
        }
    }

    fn keep(&mut self, span: Span) {
        if self.has_room() { self.spans.push(span) } else { self.dropped += 1 }
    }

    fn has_room(&self) -> bool {
        self.spans.len() + self.device.len() < LIMIT
    }
}

/// Source of timestamps after the work that a framework has enqueued on its device so far.
pub(crate) type Stamps = Arc<dyn Fn() -> Stamp + Send + Sync>;

/// Records of the training thread, which is always in exactly one span.
pub(crate) struct Timeline {
    pub(super) recorder: Recorder,
    /// Current span; its end is not known yet.
    current: Span,
    /// Source of timestamps of the framework, if it computes on a device, and the timestamp at the beginning of the
    /// span.
    framework: Option<(Stamps, Stamp)>,
    /// True if the engine optimizer makes the steps, on its own queues, not that of the framework.
    is_elsewhere: bool,
}

impl Timeline {
    pub(crate) fn new(clock: TraceClock, step: u64, framework: Option<Stamps>) -> Self {
        let recorder = Recorder::new(clock);
        let current = begun(Kind::Between, step, recorder.now());
        let framework = framework.map(|stamps| {
            let first = stamps();
            (stamps, first)
        });
        Timeline { recorder, current, framework, is_elsewhere: false }
    }

    /// Ends the current span and begins another; returns the previous kind.
    pub(crate) fn enter(&mut self, kind: Kind, step: u64) -> Kind {
        let before = self.current.kind;
        if kind == Kind::Backward && matches!(before, Kind::Between | Kind::Optimizer) {
            self.current.kind = Kind::LoadingAndForward;
        }
        self.recorder.ends(self.current);
        let next = begun(kind, step, self.recorder.now());
        self.device_goes_on();
        self.is_elsewhere &= matches!(kind, Kind::Optimizer | Kind::Waiting);
        self.current = next;
        before
    }

    /// Records a step of the engine optimizer on a bucket on a device.
    pub(crate) fn stepped(&mut self, step: u64, bucket: usize, bytes: usize, stamps: [Stamp; 2]) {
        self.is_elsewhere = true;
        let bytes = bytes as u64;
        self.recorder.device_did(Span { bucket, bytes, ..begun(Kind::Optimizer, step, 0) }, stamps);
    }

    /// Ends the current span on the device of the framework.
    fn device_goes_on(&mut self) {
        let Some((stamps, begun)) = &mut self.framework else { return };
        let now = stamps();
        let begun = std::mem::replace(begun, Arc::clone(&now));
        let kind = match self.current.kind {
            // The framework itself has no work meanwhile.
            Kind::Optimizer if self.is_elsewhere => Kind::Waiting,
            kind => kind,
        };
        self.recorder.device_did(Span { kind, ..self.current }, [begun, now]);
    }

    /// Ends the last span.
    pub(crate) fn finish(mut self) -> Recorder {
        self.recorder.ends(self.current);
        self.device_goes_on();
        self.recorder
    }
}

fn begun(kind: Kind, step: u64, start: i64) -> Span {
    Span { kind, place: Place::Host, step, bucket: 0, bytes: 0, start, end: start, sent: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the recorded kinds of the thread.
    fn kinds(entered: &[Kind]) -> Vec<Kind> {
        let mut timeline = Timeline::new(TraceClock::start(), 0, None);
        for kind in entered {
            timeline.enter(*kind, 0);
        }
        let spans = timeline.finish().spans;
        assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start), "{spans:?}");
        spans.iter().map(|span| span.kind).collect()
    }

    #[test]
    fn a_loop_that_tells_its_forward_pass_has_it_recorded() {
        use Kind::{Backward, Between, Forward, Optimizer, Waiting};
        let loops = [Forward, Backward, Waiting, Backward, Optimizer, Between];
        assert_eq!(kinds(&loops), [Between, Forward, Backward, Waiting, Backward, Optimizer, Between]);
    }

    #[test]
    fn a_loop_that_does_not_has_loading_and_forward_in_one() {
        use Kind::{Backward, Between, LoadingAndForward, Optimizer};
        let step = [Backward, Optimizer, Between];
        assert_eq!(kinds(&step), [LoadingAndForward, Backward, Optimizer, Between]);
        // This loop does not mark the end of its step either.
        let passes = [Backward, Optimizer, Backward, Optimizer];
        assert_eq!(kinds(&passes), [LoadingAndForward, Backward, LoadingAndForward, Backward, Optimizer]);
    }

    #[test]
    fn spans_survive_their_words() {
        for kind in Kind::ALL {
            for place in [Place::Host, Place::Device] {
                let span = Span { place, ..begun(kind, 7, -5) };
                let span = Span { bucket: 3, bytes: 1 << 40, end: 9, sent: u64::MAX, ..span };
                assert_eq!(Span::from_words(span.to_words()).unwrap(), span);
            }
        }
        for [kind, place] in [[15, 0], [-1, 0], [0, 2], [0, -1]] {
            assert!(Span::from_words([kind, place, 0, 0, 0, 0, 0, 0]).is_err());
        }
    }
}
