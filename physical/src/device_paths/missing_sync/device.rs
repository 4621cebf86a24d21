//! Queues of one GPU, their bells, and another library's stream.

use super::Trial;
use super::rank::{LEN, copy, filled, is, scale};
use crate::device::Queue;
use crate::device::cuda::{Cuda, ForeignStream, raw_stream};
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::waiting::alarm::Alarm;
use crate::waiting::doorbell::Bell;
use std::sync::Arc;
use std::time::Duration;

fn gpu() -> Cuda {
    Cuda::new(0).unwrap()
}

pub(super) fn writes_what_is_read(trial: Trial) -> bool {
    let gpu = gpu();
    let x = filled(&gpu, trial.by);
    let y = filled(&gpu, 0.0);
    copy(&x, &y);
    scale(&x, 10.0);
    is(&x, 10.0 * trial.by) && is(&y, trial.by)
}

pub(super) fn reads_what_is_written(trial: Trial) -> bool {
    let gpu = gpu();
    let x = filled(&gpu, 1.0);
    let y = filled(&gpu, 0.0);
    scale(&x, trial.by);
    copy(&x, &y);
    is(&y, trial.by)
}

pub(super) fn rings_when_all_is_done(trial: Trial) -> bool {
    // Without a check of it before, which would also wait for a bell.
    let x = Buffer::from_slice_on(&gpu().queue().unwrap(), &[1.0f32; LEN]).unwrap();
    scale(&x, trial.by);
    let event = x.queue().device().unwrap().record();
    let alarm = Arc::new(Alarm::default());
    event.ring(Arc::clone(&alarm) as Arc<dyn Bell>);
    alarm.wait(Duration::from_secs(60)) && event.has_happened()
}

/// Memory of another library with its own stream, and the same memory as a buffer of a queue.
struct ForeignMemory {
    theirs: Arc<Buffer>,
    stream: ForeignStream,
    queue: Queue,
    ours: Buffer,
}

impl ForeignMemory {
    fn new(gpu: &Cuda, number: f32) -> Self {
        let theirs = Arc::new(filled(gpu, number));
        // SAFETY: the stream lives as long as its queue, and the keeper owns the queue.
        let stream =
            unsafe { gpu.foreign_stream(raw_stream(&theirs.queue()).unwrap(), Arc::new(theirs.queue())) };
        let queue = gpu.queue().unwrap();
        let keeper = Arc::clone(&theirs) as Arc<_>;
        // SAFETY: the keeper owns these elements, and each side waits for the other's work.
        let ours = unsafe { Buffer::over_foreign(&queue, theirs.address(), DType::F32, LEN, keeper) };
        ForeignMemory { theirs, stream, queue, ours: ours.unwrap() }
    }
}

pub(super) fn reads_what_another_library_writes(trial: Trial) -> bool {
    let shared = ForeignMemory::new(&gpu(), 1.0);
    scale(&shared.theirs, trial.by);
    shared.stream.make_queue_wait(&shared.queue).unwrap();
    is(&shared.ours, trial.by)
}

pub(super) fn writes_what_another_library_reads(trial: Trial) -> bool {
    let shared = ForeignMemory::new(&gpu(), 1.0);
    scale(&shared.ours, trial.by);
    shared.stream.wait_for(&shared.queue).unwrap();
    is(&shared.theirs, trial.by)
}
