//! Spans of hooks in a trace, which the communication thread records.

use crate::engine::runner::HookStage;
use crate::plugin::StepInfo;
use crate::trace::{Kind, Place, Recorder, Span, Stamp};
use hexagram_logical::{Communicator, Queue};

/// Hook in progress while a trace is recorded.
pub(crate) struct OpenHook {
    span: Span,
    /// Queue of the bucket, and the start of the hook on that queue, if it belongs to a device.
    device: Option<(Queue, Stamp)>,
}

/// Starts the span of a hook.
pub(crate) fn hook_begins(
    recorder: &Recorder,
    stage: HookStage,
    present: StepInfo,
    bucket: usize,
    bytes: usize,
    queue: &Queue,
) -> OpenHook {
    let kind = match stage {
        HookStage::Start => Kind::State,
        HookStage::Forward => Kind::BeforeForward,
        HookStage::Evaluate => Kind::Evaluated,
        HookStage::Gradients => Kind::GradientsReady,
        HookStage::Backward => Kind::AfterBackward,
        HookStage::Step => Kind::AfterStep,
        HookStage::Settle => Kind::Settle,
    };
    let now = recorder.now();
    let step = present.step;
    let bytes = bytes as u64;
    let span = Span { kind, place: Place::Host, step, bucket, bytes, start: now, end: now, sent: 0 };
    OpenHook { span, device: queue.timestamp().map(|begun| (queue.clone(), begun)) }
}

/// Records the span of a hook that has ended.
pub(crate) fn hook_ends(recorder: &mut Recorder, open: Option<OpenHook>, comm: &Communicator) {
    let Some(OpenHook { span, device }) = open else { return };
    recorder.ends(Span { sent: comm.world().traffic().bytes_sent(), ..span });
    let ended = device.and_then(|(queue, begun)| Some([begun, queue.timestamp()?]));
    if let Some(stamps) = ended {
        recorder.device_did(span, stamps);
    }
}
