//! Patience of a waiting thread: the time for which it stays awake.
//!
//! Waking a parked thread takes a while, during which the waking thread waits in turn. If the waking thread parked before the
//! other one is awake, both would park alternately forever, at a hundred times the cost of a check. Therefore patience is a
//! multiple of the wake-up time, which depends on the machine and is measured once, when a process joins its world.

#![allow(clippy::disallowed_methods, reason = "measures how fast this machine wakes a thread")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

/// Ratio of that time to the time of a wake-up.
const MULTIPLE: u32 = 8;
/// Shortest patience, even if waking is fast or cannot be measured: a halted core takes some 50 µs to wake.
const LEAST: Duration = Duration::from_micros(400);
/// Longest patience, so that a machine that was busy when it was measured does not burn its cores.
const MOST: Duration = Duration::from_millis(2);
/// Wake-ups that are measured, there and back.
const TURNS: u32 = 10;

static PATIENCE: LazyLock<Duration> = LazyLock::new(|| of(measure()));

/// Returns how long a thread looks for work before it parks; the first call measures it, in less than a millisecond on
/// a quiet machine.
pub(crate) fn patience() -> Duration {
    *PATIENCE
}

/// Returns true if this number of ranks on one host must share its cores.
pub(crate) fn crowded(local_ranks: usize) -> bool {
    // All cores of the host, as launchers bind each rank to some of them.
    // SAFETY: sysconf has no preconditions.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cores).is_ok_and(|cores| local_ranks > cores)
}

fn of(wake_up: Option<Duration>) -> Duration {
    wake_up.map_or(LEAST, |wake_up| (wake_up * MULTIPLE).clamp(LEAST, MOST))
}

/// Returns the longest of some wake-ups; `None` if there can be no second thread.
fn measure() -> Option<Duration> {
    let turn = Arc::new(AtomicU32::new(0));
    let theirs = Arc::clone(&turn);
    let here = thread::current();
    let answer = move || {
        for round in 0..TURNS {
            await_turn(&theirs, 2 * round + 1);
            theirs.store(2 * round + 2, Ordering::Release);
            here.unpark();
        }
    };
    let there = Builder::new().name("hexagram-wake".to_owned()).spawn(answer).ok()?;
    let there_and_back = |round: u32| {
        let started = Instant::now();
        turn.store(2 * round + 1, Ordering::Release);
        there.thread().unpark();
        await_turn(&turn, 2 * round + 2);
        started.elapsed() / 2
    };
    let longest = (0..TURNS).map(there_and_back).max();
    there.join().ok()?;
    longest
}

/// Parks until its turn; the sides take turns.
fn await_turn(turn: &AtomicU32, mine: u32) {
    while turn.load(Ordering::Acquire) != mine {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_a_multiple_of_a_wake_up_within_bounds() {
        let micros = Duration::from_micros;
        assert_eq!(of(Some(micros(100))), micros(800));
        assert_eq!(of(Some(micros(1))), LEAST);
        assert_eq!(of(Some(micros(100_000))), MOST);
        assert_eq!(of(None), LEAST);
    }

    #[test]
    fn waking_takes_some_time() {
        assert!(measure().is_some_and(|wake_up| !wake_up.is_zero()));
    }
}
