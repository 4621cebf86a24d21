//! Moves a rank away from a core that it shares with more peers than necessary.
//!
//! Two ranks on one core answer each other a thousand times slower than on two, and a rank that yields to its peer
//! gives the kernel no reason to separate them. So each rank that waits for longer publishes its core, and a rank
//! that shares it moves to a core with fewer peers. Ranks on one core look for another one in turn, so they do not
//! move together. A rank is not bound to its new core: programs have other threads, and the kernel schedules them best.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::time::{Duration, Instant};

/// Shortest time between two moves, each of which takes about ten microseconds.
const PAUSE: Duration = Duration::from_millis(5);

/// Returns the core of this thread.
pub(super) fn current() -> u32 {
    sched_getcpu() as u32
}

/// Moves one thread between cores, at most once in [`PAUSE`].
#[derive(Debug, Default)]
pub(super) struct CoreMover {
    /// Time of the last move.
    moved: Option<Instant>,
}

impl CoreMover {
    /// Moves this thread from core `here` to the allowed core with the fewest peers by `peers_on`. Returns true if it
    /// moved: no core may have fewer than `here`, or the last move may be too recent.
    pub(super) fn leave(&mut self, here: u32, now: Instant, peers_on: impl Fn(u32) -> usize) -> bool {
        let most = peers_on(here);
        if most == 0 || self.moved.is_some_and(|moved| now - moved < PAUSE) {
            return false;
        }
        let Ok(allowed) = sched_getaffinity(None) else { return false };
        let cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let emptiest = cores.min_by_key(|core| peers_on(*core as u32));
        emptiest.filter(|core| peers_on(*core as u32) < most).is_some_and(|core| {
            let mut only = CpuSet::new();
            only.set(core);
            self.moved = Some(now);
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
        let one_peer_here = |core| usize::from(core == here);
        assert_eq!(mover.leave(here, now, one_peer_here), before.len() > 1);
        assert!(!mover.leave(here, now, one_peer_here), "the last move is too recent");
        assert_eq!(mover.leave(here, now + PAUSE, one_peer_here), before.len() > 1);
        assert_eq!(cores(), before);
    }

    #[test]
    fn a_thread_stays_if_no_core_has_fewer_peers() {
        let here = current();
        assert!(!CoreMover::default().leave(here, Instant::now(), |_| 1));
        assert!(!CoreMover::default().leave(here, Instant::now(), |core| if core == here { 1 } else { 2 }));
    }
}
