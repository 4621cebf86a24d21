//! Ranks that read each other's memory on one GPU. What is wrong within a collective shows only if the streams of both ranks
//! are at it in a certain order, so that such programs have many rounds.

use super::Trial;
use super::rank::{Hold, Rank, copy, filled, is, on_two, scale};
use crate::transport::TransportKind;

/// Does so in many rounds, all of which have to be right. None is left out, as the other rank takes part in each.
fn rounds(body: impl Fn(f32) -> bool) -> bool {
    let all: Vec<bool> = (0..10).map(|round| body(round as f32)).collect();
    all.iter().all(|is_right| *is_right)
}

fn ranks(body: impl Fn(&Rank) -> bool + Sync) -> bool {
    on_two(TransportKind::Ipc, body)
}

/// Rank 1 has much to do before its contribution is what it is to be.
pub(super) fn reads_contributions(trial: Trial) -> bool {
    ranks(|rank| {
        let x = rank.registered(0.0);
        rounds(|round| {
            copy(&filled(&rank.gpu, 1.0), &x);
            (0..16).for_each(|_| scale(&x, 1.0));
            scale(&x, trial.by + round);
            rank.broadcast(&x);
            is(&x, trial.by + round)
        })
    })
}

pub(super) fn reads_what_others_have_combined(trial: Trial) -> bool {
    ranks(|rank| {
        let x = rank.registered(0.0);
        rounds(|round| {
            let by = trial.by + round;
            copy(&filled(&rank.gpu, by), &x);
            rank.all_reduce(0, &x);
            is(&x, 2.0 * by)
        })
    })
}

/// What rank 1 has contributed is written again at once.
pub(super) fn writes_what_others_have_read(trial: Trial) -> bool {
    ranks(|rank| {
        let x = rank.registered(0.0);
        rounds(|round| {
            let by = trial.by + round;
            copy(&filled(&rank.gpu, by), &x);
            rank.broadcast(&x);
            let result = if rank.number == 0 { by } else { 0.0 };
            if rank.number == 1 {
                x.write_all().unwrap().clear();
            }
            is(&x, result)
        })
    })
}

/// Nobody waits for what the sender has enqueued.
pub(super) fn takes_a_message(trial: Trial) -> bool {
    let hold = Hold::new(trial);
    ranks(|rank| {
        let x = filled(&rank.gpu, 1.0);
        if rank.number == 1 {
            scale(&x, trial.by);
        }
        rank.message(&x);
        if rank.number == 1 {
            hold.wait();
        }
        let is_right = is(&x, trial.by);
        hold.end();
        is_right
    })
}

/// The second operation of rank 0 has come to its steps when rank 1 waits for those of the first one.
pub(super) fn does_one_after_the_other(trial: Trial) -> bool {
    ranks(|rank| {
        let [x, y] = [1.0, trial.by].map(|number| rank.registered(number));
        scale(&x, trial.by);
        rank.all_reduce(0, &x);
        rank.all_reduce(0, &y);
        let mut both = [x, y];
        both.rotate_left(1 - rank.number);
        let [first, second] = both.map(|one| is(&one, 2.0 * trial.by));
        first && second
    })
}
