//! Ranks that read each other's memory on one GPU. Missing waits within a collective show only in certain orders of
//! both ranks' streams, so these programs have many rounds.

use super::Trial;
use super::rank::{HeldBackRank, TrialRank, copy, filled, is, on_two, scale};
use crate::transport::TransportKind;

/// Runs many rounds, all of which must be right. It skips none, since the other rank takes part in each.
fn rounds(body: impl Fn(f32) -> bool) -> bool {
    let all: Vec<bool> = (0..10).map(|round| body(round as f32)).collect();
    all.iter().all(|is_right| *is_right)
}

fn ranks(body: impl Fn(&TrialRank) -> bool + Sync) -> bool {
    on_two(TransportKind::Ipc, body)
}

/// Rank 1 has much work before its contribution is complete.
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

/// Rank 1 overwrites its contribution immediately.
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

/// No thread waits for the sender's work.
pub(super) fn takes_a_message(trial: Trial) -> bool {
    let hold = HeldBackRank::new(trial);
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

/// The second operation of rank 0 starts its steps while rank 1 waits for those of the first.
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
