//! Cores that ranks share although there are enough: seen in time, and left.
//!
//! Two ranks on one core answer each other a thousand times slower than on two, and a rank that yields to its peer gives
//! the system no reason to part them. So each shows, where it waits for longer, on which core it runs; and whoever finds
//! itself on a peer's moves to a free one. It is not bound there: programs have other threads, and the system knows best.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::time::{Duration, Instant};

/// Between two moves, each of which takes some ten microseconds.
const PAUSE: Duration = Duration::from_millis(5);

/// Returns the core on which this thread runs.
pub(super) fn current() -> u32 {
    sched_getcpu() as u32
}

/// Where one thread may move, and when it did.
#[derive(Debug, Default)]
pub(super) struct CoreMover {
    moved: Option<Instant>,
}

impl CoreMover {
    /// Moves this thread to a core that is not `taken`, if it may run on one and has not just moved. Whether it did.
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
