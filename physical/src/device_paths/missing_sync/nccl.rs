//! Ranks whose GPUs NCCL connects: between its stream and the queues of the memory that it reads and writes.

use super::Trial;
use super::rank::{LEN, TrialRank, copy, filled, is, on_two, scale};
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::transport::TransportKind;

fn ranks(body: impl Fn(&TrialRank) -> bool + Sync) -> bool {
    on_two(TransportKind::Nccl, body)
}

/// Returns a buffer for half of a sum, whose queue has nothing to do.
fn half(rank: &TrialRank) -> Buffer {
    let half = Buffer::zeroed_on(&rank.queue(), DType::F32, LEN / 2).unwrap();
    half.queue().check().unwrap();
    half
}

/// Another queue reads memory that is then reduced in place.
pub(super) fn writes_what_is_read(trial: Trial) -> bool {
    ranks(|rank| {
        let x = filled(&rank.gpu, trial.by);
        let y = filled(&rank.gpu, 0.0);
        copy(&x, &y);
        rank.all_reduce(0, &x);
        is(&x, 2.0 * trial.by) & is(&y, trial.by)
    })
}

pub(super) fn reads_an_input(trial: Trial) -> bool {
    ranks(|rank| {
        let x = filled(&rank.gpu, 1.0);
        let y = half(rank);
        scale(&x, trial.by);
        rank.reduce_scatter(&x, &y);
        is(&y, 2.0 * trial.by)
    })
}

/// Later work on the NCCL stream is waited for first.
pub(super) fn reads_what_it_writes(trial: Trial) -> bool {
    ranks(|rank| {
        let x = filled(&rank.gpu, 1.0);
        let y = filled(&rank.gpu, trial.by);
        copy(&filled(&rank.gpu, trial.by), &x);
        rank.all_reduce(0, &x);
        rank.all_reduce(0, &y);
        is(&y, 2.0 * trial.by) & is(&x, 2.0 * trial.by)
    })
}

/// The result is not an input. If it were, the scaling that completes a sum of floats would wait for NCCL, as for a reader of
/// its output.
pub(super) fn reads_a_result(trial: Trial) -> bool {
    ranks(|rank| {
        let x = filled(&rank.gpu, trial.by);
        let y = half(rank);
        rank.reduce_scatter(&x, &y);
        is(&y, 2.0 * trial.by)
    })
}
