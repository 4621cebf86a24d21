//! Moves a rank away from a core that it shares with a peer although other cores are free.
//!
//! Two ranks on one core answer each other a thousand times slower than on two, and a rank that yields to its peer
//! gives the kernel no reason to separate them. So each rank that waits for longer publishes its core, and a rank
//! that finds itself on the core of a peer moves to a free one. It is not bound to that core: programs have other
//! threads, and the kernel schedules them best.

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
    /// Moves this thread to an allowed core for which `taken` is false. Returns true if it moved: no such core may
    /// exist, or the last move may be too recent.
    pub(super) fn leave(&mut self, now: Instant, taken: impl Fn(u32) -> bool) -> bool {
        if self.moved.is_some_and(|moved| now - moved < PAUSE) {
            return false;
        }
        self.moved = Some(now);
        let Ok(allowed) = sched_getaffinity(None) else { return false };
        let free = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core) && !taken(*core as u32));
        free.is_some_and(|core| {
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
        assert_eq!(mover.leave(now, |core| core == here), before.len() > 1);
        assert!(!mover.leave(now, |_| false), "it has just moved");
        assert!(mover.leave(now + PAUSE, |_| false));
        assert_eq!(cores(), before);
    }

    #[test]
    fn nobody_moves_where_no_core_is_free() {
        assert!(!CoreMover::default().leave(Instant::now(), |_| true));
    }
}
