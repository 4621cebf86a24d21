//! Ranks whose GPUs NCCL connects: between its stream and the queues of what it reads and writes.

use super::Trial;
use super::rank::{Hold, LEN, Rank, copy, filled, is, on_two, scale};
use crate::dtype::DType;
use crate::memory::Buffer;
use crate::transport::TransportKind;

fn ranks(body: impl Fn(&Rank) -> bool + Sync) -> bool {
    on_two(TransportKind::Nccl, body)
}

/// Returns a buffer for half of a sum, whose queue has nothing to do.
fn half(rank: &Rank) -> Buffer {
    let half = Buffer::zeroed_on(&rank.queue(), DType::F32, LEN / 2).unwrap();
    half.queue().check().unwrap();
    half
}

/// Another queue reads what is then reduced in place.
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

/// What comes behind it on NCCL's stream is waited for first.
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

/// What comes behind it on NCCL's stream is waited for first.
pub(super) fn sends_what_is_written(trial: Trial) -> bool {
    ranks(|rank| {
        let x = filled(&rank.gpu, 1.0);
        let y = filled(&rank.gpu, trial.by);
        if rank.number == 1 {
            scale(&x, trial.by);
        }
        rank.message(&x);
        rank.all_reduce(0, &y);
        is(&y, 2.0 * trial.by) & is(&x, trial.by)
    })
}

/// The work of one communicator cannot end before rank 1's does, when the GPU of rank 0 comes to that of the other one; the
/// fake NCCL ends a program that lets it do so.
pub(super) fn does_one_after_the_other(trial: Trial) -> bool {
    let hold = Hold::new(trial);
    ranks(|rank| {
        let both = [(); 2].map(|()| filled(&rank.gpu, trial.by));
        both.iter().enumerate().for_each(|(end, buffer)| rank.all_reduce(end, buffer));
        if rank.number == 1 {
            hold.wait();
        }
        // Both at a time.
        let queues = both.each_ref().map(Buffer::queue);
        std::thread::scope(|scope| {
            queues.iter().for_each(|queue| _ = scope.spawn(|| queue.check().unwrap()))
        });
        both.iter().all(|buffer| is(buffer, 2.0 * trial.by))
    })
}

/// The result is no input: where it is, the scaling that completes a sum of floats waits for NCCL as for a reader of what it
/// writes.
pub(super) fn reads_a_result(trial: Trial) -> bool {
    ranks(|rank| {
        let x = filled(&rank.gpu, trial.by);
        let y = half(rank);
        rank.reduce_scatter(&x, &y);
        is(&y, 2.0 * trial.by)
    })
}
