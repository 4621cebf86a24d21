//! Moves a rank away from a core that it shares with more peers than necessary.
//!
//! Two ranks on one core answer each other a thousand times slower than on two, and a rank that yields to its peer gives the
//! kernel no reason to separate them. So each rank that waits for longer publishes its core, and a rank that shares it moves to
//! a core with fewer peers. Ranks on one core look for a different core in turn, so they do not move together. A rank is not
//! bound to its new core: programs have other threads, and the kernel schedules them best.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::time::{Duration, Instant};

/// Shortest time between two attempts to move. A move takes about ten microseconds.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns the core of this thread.
pub(super) fn current() -> u32 {
    sched_getcpu() as u32
}

/// Moves one thread between cores, at most once in [`PAUSE`].
#[derive(Debug, Default)]
pub(super) struct CoreMover {
    /// Time of the last attempt.
    tried: Option<Instant>,
}

impl CoreMover {
    /// Moves this thread from core `here` to the allowed core with the fewest of `peers`, which are cores. Returns true
    /// if it moved: no core may have fewer than `here`, or the last attempt may be too recent.
    pub(super) fn leave(&mut self, here: u32, now: Instant, peers: impl Iterator<Item = u32>) -> bool {
        if self.tried.is_some_and(|tried| now - tried < PAUSE) {
            return false;
        }
        self.tried = Some(now);
        let Ok(allowed) = sched_getaffinity(None) else { return false };
        let mut ranks = [0u32; CpuSet::MAX_CPU];
        for core in peers {
            if let Some(ranks) = ranks.get_mut(core as usize) {
                *ranks += 1;
            }
        }
        let cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let emptiest = cores.min_by_key(|core| ranks[*core]);
        let most = ranks.get(here as usize).copied().unwrap_or(0);
        emptiest.filter(|core| ranks[*core] < most).is_some_and(|core| {
            let mut only = CpuSet::new();
            only.set(core);
            let moved = sched_setaffinity(None, &only).is_ok();
            // Only this thread sets its own cores, and it was just allowed all of them.
            moved && sched_setaffinity(None, &allowed).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_moves_once_in_a_while_and_keeps_its_cores() {
        let cores = || {
            let allowed = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect::<Vec<_>>()
        };
        let before = cores();
        let here = current();
        let mut mover = CoreMover::default();
        let now = Instant::now();
        let one_peer_here = || [here].into_iter();
        assert_eq!(mover.leave(here, now, one_peer_here()), before.len() > 1);
        assert!(!mover.leave(here, now, one_peer_here()), "the last attempt is too recent");
        assert_eq!(mover.leave(here, now + PAUSE, one_peer_here()), before.len() > 1);
        assert_eq!(cores(), before);
    }

    #[test]
    fn a_thread_stays_if_no_core_has_fewer_peers() {
        let here = current();
        let all = || 0..CpuSet::MAX_CPU as u32;
        assert!(!CoreMover::default().leave(here, Instant::now(), all()));
        let fewer_here = all().chain(all().filter(|core| *core != here));
        assert!(!CoreMover::default().leave(here, Instant::now(), fewer_here));
    }
}
